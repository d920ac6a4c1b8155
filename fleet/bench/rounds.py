"""Rounds: the same worker process is given one backlog after another; and what other sessions may hold meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg

from fleet.bench.stage import Connection, Crew, fill

WARM_UP_TASKS = 5_000
_LAST = "SELECT id FROM fleet.task ORDER BY id DESC LIMIT 1"
_OPEN = "SELECT count(*) FROM fleet.task WHERE id > %s AND finished_at IS NULL"


def work_off(crew: Crew, tasks: int) -> float:
    """Pause the queue, fill it, let it go; return tasks per second of this round alone, by the database's clock."""
    before = crew.one(_LAST) or UUID(int=0)
    crew.pause()
    fill(crew.connection, tasks)
    last = crew.one(_LAST)
    crew.resume()
    crew.wait_until(lambda: crew.one("SELECT finished_at IS NOT NULL FROM fleet.task WHERE id = %s", last))
    crew.wait_until(lambda: crew.one(_OPEN, before) == 0)
    count, seconds, well = crew.connection.execute(
        "SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float8, "
        "bool_and(state = 'SUCCEEDED') FROM fleet.task WHERE id > %s",
        (before,),
    ).fetchone() or (0, 0.0, False)
    if not well or count != tasks:
        raise RuntimeError(f"of {tasks} tasks {count} have ended, and not all of them well")
    return float(count / seconds)


def warm_up(crew: Crew) -> None:
    """Let a worker be as it is after a while: the first tasks of a process are slower."""
    work_off(crew, WARM_UP_TASKS)


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot in a session of its own, as a long report or a dump does, and check that it was held."""
    with psycopg.connect(url) as connection:
        begin_repeatable(connection)
        then = _count(connection)
        yield
        if _count(connection) != then:
            raise RuntimeError("the session has seen what was committed after its snapshot")


def begin_repeatable(connection: Connection) -> None:
    """Let this session's transactions keep the snapshot of their first question."""
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ


def _count(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) FROM fleet.task").fetchone()
    return row[0] if row else 0
