"""Whether it matters for the rate of claims how much waits: a small backlog, a large one, a small one and delayed tasks."""

from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from fleet.bench.result import Figures, Goal, Result, alternate, medians
from fleet.bench.stage import Connection, Crew, Stage, fill

BATCH = 200
_WAITING = "SELECT count(*) FROM fleet.task WHERE state = 'QUEUED' AND run_at <= clock_timestamp()"
# The last task of a window: the queue is served in this order, which is that of the index.
_LAST_OF_WINDOW = """
SELECT id
FROM fleet.task
WHERE queue = 'default' AND priority = 5 AND state = 'QUEUED' AND run_at <= clock_timestamp()
ORDER BY run_at, id
OFFSET %s
LIMIT 1
"""
_RATE = """
SELECT (count(*) / extract(epoch FROM max(finished_at) - min(started_at)))::float8
FROM (SELECT started_at, finished_at
      FROM fleet.task
      WHERE started_at >= %s AND state = 'SUCCEEDED'
      ORDER BY finished_at
      LIMIT %s) AS done
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A database in which at least `backlog` due tasks wait, whenever a window of tasks is taken off."""

    url: str
    backlog: int
    window: int

    def top_up(self, connection: Connection) -> None:
        """Let a window more than the backlog wait, and the table be vacuumed: on every side alike."""
        row = connection.execute(_WAITING).fetchone()
        fill(connection, self.backlog + self.window - (row[0] if row else 0))


def measure(stage: Stage, *, small: int, large: int, delayed: int, window: int, rounds: int) -> Result:
    """Take windows of tasks off three tables in turn: by the claim's statement alone, and then by a worker."""
    sides = {"small": (small, 0), "large": (large, 0), "delayed": (small, delayed)}
    with ExitStack() as stack:
        tables = {}
        for name, (backlog, later) in sides.items():
            url = stack.enter_context(stage.database(name=f"fleet_bench_{name}"))
            tables[name] = Table(url, backlog, window)
            with psycopg.connect(url, autocommit=True) as connection:
                if later:
                    fill(connection, later, due_in="1 h")
                tables[name].top_up(connection)
        claims = alternate({name: _Claims(stage, table) for name, table in tables.items()}, rounds, stage.say)
        drains = alternate(_drains(stage, tables, stack), rounds, stage.say)
    figures: dict[str, float] = {}
    for kind, found in (("claim", claims), ("drain", drains)):
        middle = {name: medians(each) for name, each in found.items()}
        for name, each in middle.items():
            figures |= {f"{kind}_{name}_{figure}": value for figure, value in each.items()}
        for name in ("large", "delayed"):
            figures[f"{kind}_ratio_{name}_to_small"] = (
                middle[name]["tasks_per_second"] / middle["small"]["tasks_per_second"]
            )
    setup = {"small": small, "large": large, "delayed": delayed, "window": window, "batch": BATCH, "slots": 256}
    goals = [Goal(f"claim_ratio_{name}_to_small", at_least=0.9) for name in ("large", "delayed")]
    every = [
        {f"{kind}_{name}_{figure}": value for name in found for figure, value in found[name][number].items()}
        for kind, found in (("claim", claims), ("drain", drains))
        for number in range(rounds)
    ]
    return Result("backlog", setup, figures, goals, every)


@dataclass(frozen=True, slots=True)
class _Claims:
    """The claim's statement alone."""

    stage: Stage
    table: Table

    def __call__(self) -> Figures:
        with psycopg.connect(self.table.url, autocommit=True) as connection:
            self.table.top_up(connection)
        return self.stage.play("fleet.bench.sides.claims", url=self.table.url, tasks=self.table.window, batch=BATCH)


@dataclass(frozen=True, slots=True)
class _Drain:
    """A worker, which waits at a paused queue between its windows."""

    crew: Crew
    table: Table

    def __call__(self) -> Figures:
        crew, window = self.crew, self.table.window
        self.table.top_up(crew.connection)
        last, began = crew.one(_LAST_OF_WINDOW, window - 1), crew.one("SELECT clock_timestamp()")
        crew.resume()
        crew.wait_until(lambda: crew.one("SELECT finished_at IS NOT NULL FROM fleet.task WHERE id = %s", last))
        crew.pause()
        crew.wait_until(lambda: crew.one("SELECT count(*) FROM fleet.task WHERE state = 'RUNNING'") == 0)
        return {"tasks_per_second": crew.one(_RATE, began, window)}


def _drains(stage: Stage, tables: dict[str, Table], stack: ExitStack) -> dict[str, _Drain]:
    """Start a worker at each table; the queues are paused, so that it takes nothing yet."""
    drains = {}
    for name, table in tables.items():
        with psycopg.connect(table.url, autocommit=True) as connection:
            connection.execute("UPDATE fleet.queue SET paused = true")
        drains[name] = _Drain(stack.enter_context(stage.workers(table.url, slots=256)), table)
    return drains
