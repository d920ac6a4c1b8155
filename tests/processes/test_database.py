"""PostgreSQL itself goes away and comes back: nothing accepted is lost, nobody alive is reaped, nobody is restarted."""

import asyncio
import signal
import time

import pytest

from fleet.embedded import Server
from fleet.postgres.database import AsyncConnection
from tests.faults.own_server import database_url, judge_load, server
from tests.faults.steps import LEASES, RESUME_SECONDS
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.load import load
from tests.processes.stage import Stage
from tests.support import TTL, counters, history, row, submit

__all__ = ["database_url", "server"]


@pytest.mark.fault("Database", "an immediate crash and a restart")
async def test_the_server_crashes_and_comes_back_after_two_ttl(
    crew: Crew, server: Server, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(3, slots=8)
    leases = await value(watcher, LEASES)
    once = [await submit(watcher, name=name, max_attempts=1) for name in ("act_once", "act_in_thread_once")]
    repeatable = await submit(watcher, name="act")
    actors = [await stage.arrival(task) for task in once]
    await stage.arrival(repeatable)
    async with load(database_url, milliseconds=20) as submitted:
        await submitted.more(150)
        await asyncio.to_thread(server.stop_immediately)
        await asyncio.sleep(2 * TTL.total_seconds())  # the outage; every lease has ended meanwhile, by anybody's clock
        await actors[0].order("effect")
        actors[0].tell('return "done"')  # it ends, and cannot say so to anybody
        await actors[0].gone()
        workers[0].stop()  # and this one comes back later than the others, and than their first look at its lease
        await asyncio.to_thread(server.start)
        up_at = time.monotonic()
        async with await AsyncConnection.connect(database_url, autocommit=True) as again:
            began = await value(again, "SELECT clock_timestamp()")
            awake = "SELECT count(*) FROM fleet.lease WHERE renewed_at > %s::timestamptz + interval '0.6 s'"
            await until(again, awake, began, is_=lambda count: count == 2, seconds=RESUME_SECONDS)
            workers[0].send(signal.SIGCONT)
            await until(again, "SELECT min(renewed_at) > %s FROM fleet.lease", began, seconds=RESUME_SECONDS)
            await actors[1].order("effect")
            actors[1].tell('return "done"')
            for task in once:
                assert await terminal(again, task, RESUME_SECONDS) == "SUCCEEDED"
            assert time.monotonic() - up_at < RESUME_SECONDS
            await submitted.more(100)
    async with await AsyncConnection.connect(database_url, autocommit=True) as again:
        # Handed back at no cost when its worker could not be sure of its lease, and run again.
        (await stage.arrival(repeatable, 2)).tell("return 2")
        assert await terminal(again, repeatable) == "SUCCEEDED"
        assert await history(again, repeatable) == [(1, False, "released")]
        for task in once:
            assert (await row(again, task))["result"] == "done"
            assert sink.attempts("start", task) == [1]
        await judge_load(again, sink, submitted)
        assert await value(again, LEASES) == leases  # they renewed what they had
        assert [worker.popen.poll() for worker in workers] == [None] * 3


@pytest.mark.fault("Database", "one backend is killed")
async def test_every_backend_of_every_worker_is_terminated_at_once_again_and_again(
    crew: Crew, database_url: str, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(3, slots=8)
    leases = await value(watcher, LEASES)
    terminate = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'fleet %%' AND 1 = %s"
    )
    async with load(database_url, milliseconds=20) as submitted:
        for _ in range(6):
            await submitted.more(40)
            began = await value(watcher, "SELECT clock_timestamp()")
            assert await value(watcher, terminate, 1) >= 3
            await until(watcher, "SELECT min(renewed_at) > %s FROM fleet.lease", began, seconds=RESUME_SECONDS)
    await judge_load(watcher, sink, submitted)
    assert await value(watcher, LEASES) == leases
    assert [worker.popen.poll() for worker in workers] == [None] * 3


@pytest.mark.fault("Deploy", "SIGTERM with the database down")
async def test_sigterm_while_the_database_is_down_ends_the_process_in_time(
    crew: Crew, server: Server, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    idle, busy, unsettled = [await crew.worker(slots=2, queues=[queue]) for queue in ("idle", "busy", "unsettled")]
    running = await submit(watcher, name="act_once", queue="busy")
    ended = await submit(watcher, name="act_once", queue="unsettled")
    await stage.arrival(running)
    actor = await stage.arrival(ended)
    await asyncio.to_thread(server.stop_immediately)
    await actor.order("effect")
    actor.tell("return 1")
    await actor.gone()
    began = time.monotonic()
    for worker in (idle, busy, unsettled):
        worker.send(signal.SIGTERM)
    for worker in (idle, busy, unsettled):
        assert await worker.ended() == 0
    # The handlers' patience, their grace, the settlements' patience; and what a connection may take beside.
    assert time.monotonic() - began < 4 * TTL.total_seconds() + 2.0
    await asyncio.to_thread(server.start)
    async with await AsyncConnection.connect(database_url, autocommit=True) as again:
        await crew.start_looking(again).worker(slots=2, queues=["idle", "busy", "unsettled"])
        for task in (running, ended):  # what they could not say is unknown, and for a person to check
            assert await terminal(again, task) == "FAILED"
            assert (await row(again, task))["failure_code"] == "lease_expired"
            assert sink.attempts("start", task) == [1]
        assert (await counters(again))["lease_expirations", "", ""] == 3
