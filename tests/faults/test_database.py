"""PostgreSQL crashes, refuses, times out, dead-locks and forgets who we are: nothing accepted is lost, nobody is reaped."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import psycopg
import pytest

from fleet.embedded import Server
from fleet.postgres.database import AsyncConnection
from tests.faults.own_server import database_url, judge_load, log_of, server
from tests.faults.steps import CALM, LEASES, NOW, RESUME_SECONDS, SLACK_SECONDS, keep_recovery, play
from tests.processes.crew import Crew, Process, Sink, terminal, until, value, waits_for_lock
from tests.processes.load import load
from tests.processes.oracle import judge_all
from tests.processes.stage import Stage
from tests.support import row, submit

__all__ = ["database_url", "server"]

SNAPSHOT_SECONDS = float(os.environ.get("FLEET_TEST_SNAPSHOT_SECONDS", "20"))  # 600 for the whole ten minutes
ROUNDS = 5
RENEWED_LAST = "SELECT max(renewed_at) > %s FROM fleet.lease"
RENEWED_SINCE = "SELECT min(renewed_at) > %s FROM fleet.lease WHERE state = 'LIVE'"


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[AsyncConnection]:
    """New eyes, after the old ones were lost in a crash."""
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


async def start_two_that_run(crew: Crew, stage: Stage, watcher: AsyncConnection) -> tuple[list[Process], list[UUID]]:
    """Two workers; a task that must not be repeated runs in each kind of handler until the test says otherwise."""
    workers = await crew.workers(2, slots=8, ttl="3s")
    tasks = [await submit(watcher, name=name, max_attempts=1) for name in ("act_once", "act_in_thread_once")]
    for task in tasks:
        await stage.arrival(task)
    return workers, tasks


async def they_succeed(
    watcher: AsyncConnection, stage: Stage, sink: Sink, workers: list[Process], tasks: list[UUID]
) -> None:
    """What ran through the fault ends well, was started once, and no process had to be restarted."""
    for task in tasks:
        play(await stage.arrival(task))
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
        assert sink.attempts("effect", task) == [1]
    assert [worker.popen.poll() for worker in workers] == [None] * len(workers)


@pytest.mark.timeout(300)
@pytest.mark.fault("Database", "restarts every few seconds")
async def test_a_server_that_crashes_every_few_seconds_costs_nobody_a_task_or_a_lease(
    crew: Crew, server: Server, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    workers, tasks = await start_two_that_run(crew, stage, watcher)
    leases = await value(watcher, LEASES)
    async with load(database_url, milliseconds=20) as submitted:
        for _ in range(ROUNDS):
            await submitted.more(60)
            await asyncio.to_thread(server.stop_immediately)
            await asyncio.to_thread(server.start)
            async with looking(database_url) as again:
                began = await value(again, NOW)
                await until(again, RENEWED_SINCE, began, seconds=RESUME_SECONDS)
        await submitted.more(60)
    assert log_of(server).count("database system was not properly shut down") >= ROUNDS
    async with looking(database_url) as again:
        await they_succeed(again, stage, sink, workers, tasks)
        await judge_load(again, sink, submitted)
        assert await value(again, LEASES) == leases


@pytest.mark.timeout(300)
@pytest.mark.fault("Database", "down for three TTL")
async def test_a_server_that_is_down_for_three_leases_costs_nobody_a_task_or_a_lease(
    crew: Crew, server: Server, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    workers, tasks = await start_two_that_run(crew, stage, watcher)
    leases = await value(watcher, LEASES)
    async with load(database_url, milliseconds=20) as submitted:
        await submitted.more(60)
        await asyncio.to_thread(server.stop_immediately)
        await asyncio.sleep(3 * CALM.total_seconds())  # the outage itself
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(database_url, connect_timeout=2)
        workers[0].stop()  # it comes back later than the other, and than the other's first looks at its lease
        await asyncio.to_thread(server.start)
        up_at = time.monotonic()
        async with looking(database_url) as again:
            began = await value(again, NOW)
            await until(again, RENEWED_LAST, began, seconds=RESUME_SECONDS)
            keep_recovery(
                "the database was down for three TTL: until a lease is renewed", time.monotonic() - up_at, 3.0
            )
            await until(again, RENEWED_LAST, began + CALM / 2)
            workers[0].send(signal.SIGCONT)
            await until(again, RENEWED_SINCE, began, seconds=RESUME_SECONDS)
            await submitted.more(60)
    async with looking(database_url) as again:
        await they_succeed(again, stage, sink, workers, tasks)
        await judge_load(again, sink, submitted)
        assert await value(again, LEASES) == leases


@pytest.mark.fault("Database", "one backend is killed")
@pytest.mark.parametrize("role", ["claim", "settle", "heartbeat", "maintenance"])
async def test_one_backend_killed_by_sigkill_takes_the_server_down_and_no_task_with_it(
    crew: Crew, server: Server, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink, role: str
) -> None:
    workers, tasks = await start_two_that_run(crew, stage, watcher)
    leases = await value(watcher, LEASES)
    backend = "SELECT max(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    async with load(database_url, milliseconds=20) as submitted:
        await submitted.more(60)
        victim = await until(watcher, backend, f"fleet {role}")
        os.kill(victim, signal.SIGKILL)  # the server then ends all others too, and recovers
        await submitted.more(60)
    assert f"(PID {victim}) was terminated by signal 9" in log_of(server)
    async with looking(database_url) as again:
        await they_succeed(again, stage, sink, workers, tasks)
        await judge_load(again, sink, submitted)
        assert await value(again, LEASES) == leases


@pytest.mark.timeout(300)
@pytest.mark.fault("Database", "statement and lock time-outs of 20 ms")
async def test_time_outs_of_twenty_milliseconds_that_keep_striking_delay_tasks_and_cost_none(
    crew: Crew,
    server: Server,
    database_url: str,
    stage: Stage,
    watcher: AsyncConnection,
    locker: AsyncConnection,
    sink: Sink,
) -> None:
    workers = await crew.workers(2, slots=8, ttl="3s", lock_timeout="20ms", statement_timeout="21ms")
    leases = await value(watcher, LEASES)
    async with load(database_url, milliseconds=20) as submitted:
        for table in ("task", "lease", "attempt", "counter") * 3:
            await submitted.more(10)
            await locker.execute(f"LOCK TABLE fleet.{table} IN SHARE MODE")
            await asyncio.sleep(0.15)  # so long nobody gets through: seven time-outs
            await locker.commit()
    log = log_of(server)
    assert "canceling statement due to lock timeout" in log or "canceling statement due to statement timeout" in log
    await judge_load(watcher, sink, submitted)
    assert await value(watcher, LEASES) == leases
    assert [worker.popen.poll() for worker in workers] == [None, None]


@pytest.mark.fault("Database", "a deadlock")
@pytest.mark.parametrize("role", ["settle", "maintenance"])
async def test_a_deadlock_costs_a_statement_which_is_repeated_and_counted_once(
    crew: Crew, stage: Stage, watcher: AsyncConnection, locker: AsyncConnection, sink: Sink, role: str
) -> None:
    patient = {"lock_timeout": "1800ms", "statement_timeout": "1900ms"}  # longer than deadlock_timeout: 1 s
    victim = await crew.worker(slots=2, **patient)
    task = await submit(watcher, name="act_once")
    actor = await stage.arrival(task)
    if role == "settle":
        writer, counted = await crew.lease_of(victim), ("dead_letters", "handler_error")
    else:
        survivor = await crew.worker(slots=2, queues=["nothing"], **patient)
        writer, counted = await crew.lease_of(survivor), ("dead_letters", "lease_expired")
    await locker.execute(
        "INSERT INTO fleet.counter VALUES (%s, %s, 'default', %s, 1)", (writer, counted[0], counted[1])
    )
    if role == "settle":
        actor.tell("fail on purpose")
    else:
        victim.kill()
    await waits_for_lock(watcher, role)  # it has the task's row, and waits for the counter's
    with suppress(psycopg.errors.DeadlockDetected):  # the worker has waited longer, and so is chosen, as a rule
        await locker.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (task,))
    deadlocks = "SELECT deadlocks >= 1 FROM pg_stat_database WHERE datname = current_database()"
    await until(watcher, deadlocks)
    await locker.rollback()
    assert await terminal(watcher, task) == "FAILED"
    assert (await row(watcher, task))["failure_code"] == counted[1]
    assert sink.attempts("start", task) == [1]
    after = await submit(watcher, name="quick", queue="nothing" if role == "maintenance" else "default")
    assert await terminal(watcher, after) == "SUCCEEDED"
    await judge_all(watcher, sink)


@pytest.mark.timeout(60 + 3 * SNAPSHOT_SECONDS)
@pytest.mark.fault("Database", "a snapshot held under full load")
async def test_a_snapshot_held_under_load_keeps_no_task_waiting(
    crew: Crew, database_url: str, watcher: AsyncConnection, locker: AsyncConnection, sink: Sink
) -> None:
    await crew.workers(2, slots=16)
    await locker.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await locker.execute("SELECT pg_current_xact_id()")
    horizon = await value(locker, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    async with load(database_url, milliseconds=5, every_seconds=0.001) as submitted:
        began = time.monotonic()
        while time.monotonic() - began < SNAPSHOT_SECONDS:
            await submitted.more(100)
    held = "SELECT min(backend_xmin::text::bigint) <= %s FROM pg_stat_activity WHERE state = 'idle in transaction'"
    assert await value(watcher, held, horizon)
    await judge_load(watcher, sink, submitted)
    late = (
        "SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - created_at))::float8"
        " FROM (SELECT * FROM fleet.task ORDER BY id DESC LIMIT 500) AS last"
    )
    waited = await value(watcher, late)
    print(f"{len(submitted.accepted)} tasks; the last 500 waited {waited:.3f} s at the 99th percentile")
    assert waited < 1.0 + SLACK_SECONDS
