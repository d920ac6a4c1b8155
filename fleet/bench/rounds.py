"""Rounds: the same worker process is given one backlog after another; and what other sessions may hold meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from fleet.bench.stage import LAST, NOBODY, Connection, Crew, fill

WARM_UP_TASKS = 5_000


def work_off(crew: Crew, tasks: int) -> float:
    """Pause the queue, fill it, let it go; return tasks per second of this round alone, by the database's clock."""
    before = crew.one(LAST) or NOBODY
    crew.pause()
    fill(crew.connection, tasks)
    crew.resume()
    count, seconds = crew.ended(before)
    if count != tasks:
        raise RuntimeError(f"of {tasks} tasks {count} have ended")
    return count / seconds


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
