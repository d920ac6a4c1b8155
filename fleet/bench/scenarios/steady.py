"""What a steady load costs: how long tasks wait, and what is written, committed and reckoned for each."""

from collections.abc import Mapping

import psycopg

from fleet.bench.latency import backlog_at_end
from fleet.bench.load import half_capacity, offer
from fleet.bench.result import Goal, Result
from fleet.bench.stage import Connection, Crew, Stage, server_cpu_seconds

_BACKLOG_SECONDS = 0.5  # of the load; a worker that falls behind by a fortieth has more after 20 s

_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8"
_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
_OTHERS = """
SELECT count(*)
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


def measure(stage: Stage, *, rate: float, seconds: float, slots: int, work_ms: float) -> Result:
    """Submit at a rate (0: half of what a short drain reaches) from a process of its own to one worker."""
    rate = rate or half_capacity(stage, slots=slots, work_ms=work_ms)
    with stage.database() as url, psycopg.connect(url, autocommit=True) as watch:
        with stage.workers(url, work_ms=work_ms, slots=slots) as crew:
            commits, before = _one(watch, _COMMITS), _spent(watch, crew)
            load = offer(stage, url, crew, rate, seconds)
            after = _spent(watch, crew)
            backlog = backlog_at_end(watch)
        # A session may keep its count of commits to itself for a while, but not beyond its end.
        crew.wait_until(lambda: _one(watch, _OTHERS) == 0)
        commits = _one(watch, _COMMITS) - commits
    tasks = load.pop("tasks")
    figures = {
        **load,
        **{name: (after[name] - before[name]) / tasks for name in after},
        "commits_per_task": commits / tasks,
        "backlog_at_end_tasks": float(backlog),
    }
    goals = [Goal("backlog_at_end_tasks", at_most=round(_BACKLOG_SECONDS * load["offered_tasks_per_second"]))]
    setup = {"rate": round(rate), "seconds": seconds, "slots": slots, "work_ms": work_ms}
    return Result("steady", setup, figures, goals)


def _spent(watch: Connection, crew: Crew) -> Mapping[str, float]:
    return {
        "wal_bytes_per_task": _one(watch, _WAL),
        "server_cpu_microseconds_per_task": server_cpu_seconds(watch) * 1e6,
        "worker_cpu_microseconds_per_task": crew.worker_cpu_seconds() * 1e6,
    }


def _one(connection: Connection, question: str) -> float:
    row = connection.execute(question).fetchone()
    return row[0] if row else 0
