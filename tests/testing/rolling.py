"""A rolling restart under load, wherever the workers run: while tasks keep coming in, one after another is replaced."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import psycopg

from tests.support import eventually_sync

EVERY_SECONDS = 0.05
GAP_MAX = timedelta(seconds=1)
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING')"
# A released attempt was handed back by a drain before its handler had started: it costs nothing, and counts no failure.
BURNT = """
    SELECT id, state, attempt, failures, losses, failure_reason
      FROM fleet.task
     WHERE state <> 'SUCCEEDED' OR failures > 0 OR losses > 0
        OR attempt <> 1 + (SELECT count(*) FROM fleet.attempt WHERE task_id = id AND outcome = 'released')
"""
LEASES = "SELECT state, worker, host, granted_at, renewed_at, expires_at FROM fleet.lease WHERE id = ANY(%s)"
GAPS = """
    SELECT max(gap_done), max(gap_submitted)
      FROM (SELECT finished_at - lag(finished_at) OVER (ORDER BY finished_at) AS gap_done,
                   created_at - lag(created_at) OVER (ORDER BY created_at) AS gap_submitted
              FROM fleet.task
             WHERE id = ANY(%s)) AS gaps
"""


@contextmanager
def steady_load(submit: Callable[[int], UUID]) -> Iterator[list[UUID]]:
    """Submit one task after another, from a thread, until the block is left; its error is raised there."""
    accepted: list[UUID] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            while not over.wait(EVERY_SECONDS):
                accepted.append(submit(len(accepted)))
        except BaseException as error:  # noqa: BLE001 - it is raised again where the test sees it
            errors.append(error)

    thread = threading.Thread(target=run, name="steady load")
    thread.start()
    try:
        yield accepted
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def rolled(url: str, submit: Callable[[int], UUID], roll: Callable[[], None], workers: int) -> None:
    """Every worker is replaced while tasks come in: none is lost, none is charged, and completions never pause.

    A pause of the load itself, on a machine that is short of time, is none of the workers'.
    """
    with psycopg.connect(url, autocommit=True, client_encoding="utf8") as database:

        def ask(question: str) -> tuple[object, ...]:
            return database.execute(question.encode()).fetchone() or ()

        with steady_load(submit) as accepted:
            eventually_sync(lambda: len(accepted) > 20)
            before = _live(database)
            assert len(before) == workers
            roll()
            count = len(accepted)
            eventually_sync(lambda: len(accepted) > count + 20)
        eventually_sync(lambda: ask(OPEN) == (0,), 60)
        after = _live(database)
        assert len(after) == workers
        assert not before & after
        (done,) = database.execute("SELECT array_agg(id) FROM fleet.task").fetchone() or ([],)
        assert set(accepted) <= set(done)
        assert database.execute(BURNT.encode()).fetchall() == []
        leases = database.execute(LEASES.encode(), (list(before),)).fetchall()
        assert [state for state, *_ in leases] == ["RELEASED"] * workers, leases
        gap, gap_of_load = database.execute(GAPS.encode(), (accepted,)).fetchone() or (None, None)
        print(f"{len(accepted)} tasks; longest pause of completions {gap}, of submissions {gap_of_load}")
        assert gap < GAP_MAX + gap_of_load


def _live(database: psycopg.Connection) -> set[UUID]:
    rows = database.execute(
        "SELECT id FROM fleet.lease WHERE state = 'LIVE' AND expires_at > clock_timestamp()"
    ).fetchall()
    return {row[0] for row in rows}
