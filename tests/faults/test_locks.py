"""Somebody else's locks: on whole tables for two leases, and on rows by a session that froze. Waiting costs nobody a task."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from fleet.config import Settings
from fleet.postgres.database import AsyncConnection, Database
from fleet.postgres.tables import metadata
from tests.faults.own_server import judge_load
from tests.faults.steps import CALM, LEASES, NOW, SLACK_SECONDS, TTL_SECONDS, keep_recovery, play
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.load import load
from tests.processes.oracle import judge_all
from tests.processes.stage import Stage
from tests.support import TTL, submit

TABLES = sorted(table.name for table in metadata.tables.values())
USED_BY_ALL = {"task": "claim", "lease": "heartbeat", "queue": "claim"}  # table → who surely waits for it

FREEZE = """
import os, signal, sys, psycopg
connection = psycopg.connect(sys.argv[1])
connection.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (sys.argv[2],))
print(connection.info.backend_pid, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def frozen_session(url: str, task: UUID) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that has locked a task's row and then stopped; its first line is the pid of its backend."""
    with subprocess.Popen([sys.executable, "-c", FREEZE, url, str(task)], stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def backend_of(frozen: "subprocess.Popen[bytes]") -> int:
    """The backend that it has left behind, as soon as the process stands still."""
    assert frozen.stdout is not None
    backend = int(await asyncio.to_thread(frozen.stdout.readline))
    await asyncio.to_thread(os.waitid, os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
    return backend


def test_every_table_of_the_schema_is_among_those_that_are_locked() -> None:
    assert {"task", "lease", "attempt", "counter", "queue"} <= set(TABLES)


@pytest.mark.fault("Database", "ACCESS EXCLUSIVE held on each table for two TTL")
@pytest.mark.parametrize("table", TABLES)
async def test_a_table_that_is_locked_for_two_leases_costs_nobody_a_task_or_a_lease(
    crew: Crew,
    database_url: str,
    stage: Stage,
    watcher: AsyncConnection,
    locker: AsyncConnection,
    sink: Sink,
    table: str,
) -> None:
    workers = await crew.workers(2, slots=8, ttl="3s")
    leases = await value(watcher, LEASES)
    tasks = [await submit(watcher, name=name, max_attempts=1) for name in ("act_once", "act_in_thread_once")]
    actors = [await stage.arrival(task) for task in tasks]
    async with load(database_url, milliseconds=20) as submitted:
        await submitted.more(60)
        await locker.execute(f"LOCK TABLE fleet.{table} IN ACCESS EXCLUSIVE MODE")
        locked_at = await value(locker, NOW)
        play(actors[0])  # it ends while its end cannot be written, where the table has to do with that
        if table in USED_BY_ALL:
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = %s AND wait_event_type = 'Lock'"
            )
            await until(watcher, waiting, f"fleet {USED_BY_ALL[table]}")
        await until(watcher, "SELECT clock_timestamp() - %s > %s", locked_at, 2 * CALM)
        await locker.rollback()
        play(actors[1])
        await submitted.more(60)
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
        assert sink.attempts("effect", task) == [1]
    await judge_load(watcher, sink, submitted)
    assert await value(watcher, LEASES) == leases
    assert [worker.popen.poll() for worker in workers] == [None, None]


@pytest.mark.fault("Database", "a frozen session that holds row locks")
async def test_a_frozen_session_holds_up_its_own_row_for_a_bounded_time_and_no_other(
    crew: Crew, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    await crew.worker(slots=4)
    held, free, waiting = [await submit(watcher, name="act_once", max_attempts=1) for _ in range(3)]
    actors = {task: await stage.arrival(task) for task in (held, free, waiting)}
    url = Database(database_url, Settings(ttl=TTL)).conninfo("frozen")  # with the time-outs of every session of ours
    with frozen_session(url, held) as frozen:
        backend = await backend_of(frozen)
        froze_at = await value(watcher, NOW)
        for task in (held, free):
            play(actors[task])
        assert await terminal(watcher, free) == "SUCCEEDED"
        holds = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'idle in transaction'"
        assert await value(watcher, holds, backend) == 1, "it was over before anybody had to wait for it"
        assert await terminal(watcher, held) == "SUCCEEDED"
        assert await value(watcher, holds, backend) == 0
    took = "SELECT extract(epoch FROM finished_at - %s)::float8 FROM fleet.task WHERE id = %s"
    seconds = await value(watcher, took, froze_at, held)
    keep_recovery("a session froze with a lock on a row: until that row is settled", seconds)
    assert seconds < TTL_SECONDS / 2 + TTL_SECONDS / 6 + SLACK_SECONDS  # its time-out, and one period of the reaper
    play(actors[waiting])
    assert await terminal(watcher, waiting) == "SUCCEEDED"
    await judge_all(watcher, sink)


@pytest.mark.fault("Database", "a frozen session that holds row locks")
async def test_a_dead_workers_task_that_a_frozen_session_has_locked_is_settled_when_the_session_is_ended(
    crew: Crew, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    victim = await crew.worker(slots=2)
    held, other = [await submit(watcher, name="act_once") for _ in range(2)]
    for task in (held, other):
        await stage.arrival(task)
    await crew.worker(slots=2)
    # A guest's own time-out, longer than the way to the reaper, so that the row is still held when that comes.
    url = (
        Database(database_url, Settings(ttl=TTL))
        .conninfo("frozen")
        .replace("idle_in_transaction_session_timeout=1000", "idle_in_transaction_session_timeout=8000")
    )
    with frozen_session(url, held) as frozen:
        backend = await backend_of(frozen)
        victim.kill()
        assert await terminal(watcher, other) == "FAILED"
        assert await value(watcher, "SELECT state FROM fleet.task WHERE id = %s", held) == "RUNNING"
        await until(watcher, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s", backend)
        ended_at = await value(watcher, NOW)
        assert await terminal(watcher, held) == "FAILED"
    took = "SELECT finished_at - %s FROM fleet.task WHERE id = %s"
    assert await value(watcher, took, ended_at, held) < timedelta(seconds=TTL_SECONDS / 6 + SLACK_SECONDS)
    assert (sink.attempts("start", held), sink.attempts("start", other)) == ([1], [1])
    await until(watcher, "SELECT count(*) = 0 FROM fleet.lease WHERE state = 'REAPED' AND cleared_at IS NULL")
    await judge_all(watcher, sink)
