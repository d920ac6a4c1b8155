"""What it costs the work that old tasks are pruned meanwhile: rate and slowest claims, with and without."""

import psycopg

from fleet.bench.result import Figures, Result, alternate, medians
from fleet.bench.stage import Connection, Stage, fill, settle_down
from fleet.bench.tasks import PAD

_SHOWN = ("tasks_per_second", "claim_p50_milliseconds", "claim_p99_milliseconds", "measured_seconds")
# Tasks that have ended a day more than the retention ago; one in ten of them has a history.
_OLD = """
WITH old AS (
  INSERT INTO fleet.task (id, queue, name, args, max_attempts, max_losses, run_at, created_at, started_at, finished_at,
                          state, attempt, failures)
  SELECT uuidv7(interval '-8 days'), 'default', 'work', jsonb_build_object('i', i, 'pad', %s::text), 5, 3,
    past.moment, past.moment, past.moment, past.moment, 'SUCCEEDED', 1 + (i %% 10 = 0)::int, (i %% 10 = 0)::int
  FROM generate_series(1, %s) AS i
  CROSS JOIN (SELECT clock_timestamp() - interval '8 days' AS moment) AS past
  RETURNING id, attempt, finished_at
)
INSERT INTO fleet.attempt (task_id, attempt, lease_id, outcome, at)
SELECT id, 1, uuidv7(), 'error', finished_at
FROM old
WHERE attempt > 1
"""


def measure(stage: Stage, *, old_tasks: int, tasks: int, rounds: int) -> Result:
    """Drain a backlog beside old tasks that are pruned in a loop, and beside as many that are left alone."""

    def side(*, pruning: bool) -> Figures:
        with stage.database() as url:
            with psycopg.connect(url, autocommit=True) as connection:
                fill_old(connection, old_tasks)
                fill(connection, tasks)
            return stage.play("fleet.bench.sides.pruned", url=url, tasks=tasks, slots=256, pruning=pruning)

    sides = {"alone": lambda: side(pruning=False), "pruning": lambda: side(pruning=True)}
    found = alternate(sides, rounds, stage.say)
    alone, pruning = medians(found["alone"]), medians(found["pruning"])
    figures = {
        **{f"alone_{figure}": alone[figure] for figure in _SHOWN},
        **{f"pruning_{figure}": pruning[figure] for figure in (*_SHOWN, "pruned_rows_per_second")},
        "ratio_tasks_per_second": pruning["tasks_per_second"] / alone["tasks_per_second"],
        "ratio_claim_p99": pruning["claim_p99_milliseconds"] / alone["claim_p99_milliseconds"],
    }
    setup = {"slots": 256, "work_ms": 1, "old_tasks": old_tasks, "tasks": tasks}
    every = [
        {f"{name}_{figure}": value for name in sides for figure, value in found[name][number].items()}
        for number in range(rounds)
    ]
    return Result("prune", setup, figures, rounds=every)


def fill_old(connection: Connection, tasks: int) -> None:
    """Put tasks there that ended eight days ago."""
    connection.execute(_OLD, (PAD, tasks))
    settle_down(connection, "fleet.attempt")
