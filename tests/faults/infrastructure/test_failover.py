"""The primary's machine dies under load; Patroni elects another, and the same processes go on there."""

import asyncio
from collections.abc import Iterator

import psutil
import psycopg
import pytest

from fleet.postgres.database import AsyncConnection
from tests.conformance.room import Room, room
from tests.faults.infrastructure.patroni import Node, Patroni
from tests.faults.infrastructure.steps import (
    LEASES,
    OPEN,
    alive,
    all_renewed,
    create_database,
    migrated,
    nothing_lost,
    present,
)  # fmt: skip
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.load import load
from tests.processes.stage import Stage
from tests.support import eventually, history, row, submit

WORKERS = 3
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def patroni(request: pytest.FixtureRequest, lent: Room) -> Patroni:
    return Patroni(lent, synchronous=request.param).start()


@pytest.fixture
def lent() -> Iterator[Room]:
    """A room for one test: what it did to its servers is not mended."""
    with room() as lent:
        yield lent


@pytest.fixture
def database_url(patroni: Patroni) -> str:
    create_database(patroni.url_of("postgres"), "fleet")
    return migrated(patroni.url_of("fleet"))


@pytest.mark.fault("Database", "failover to a synchronous standby (Patroni)")
@pytest.mark.parametrize("patroni", [True], indirect=True, ids=["synchronous"])
async def test_a_failover_to_a_synchronous_standby_loses_nothing_and_restarts_nobody(
    crew: Crew, patroni: Patroni, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(WORKERS, slots=8, ttl="3s")
    leases = await value(watcher, LEASES)
    ended, running = [await submit(watcher, name="act_once", max_attempts=1) for _ in range(2)]
    actors = [await stage.arrival(task) for task in (ended, running)]
    async with load(database_url, milliseconds=20) as submitted:
        await submitted.more(150)
        dead = await asyncio.to_thread(patroni.primary)
        assert await asyncio.to_thread(dead.kill) > 5  # Patroni, the postmaster and the sessions
        before = len(submitted.accepted)
        await actors[0].order("effect")
        actors[0].tell('return "done"')  # it ends while there is no primary
        elected = await asyncio.to_thread(patroni.primary, but=dead)
        async with await AsyncConnection.connect(database_url, autocommit=True) as again:
            assert again.info.port == elected.port
            await all_renewed(again, WORKERS)
            await submitted.more(100)
            assert len(submitted.accepted) >= before + 100
    async with await AsyncConnection.connect(database_url, autocommit=True) as again:
        await actors[1].order("effect")
        actors[1].tell('return "done"')
        for task in (ended, running):
            assert await terminal(again, task) == "SUCCEEDED"
            assert sink.attempts("start", task) == [1]
        await nothing_lost(again, sink, submitted)
        assert await value(again, LEASES) == leases  # they renewed what they had
    assert alive(workers)


@pytest.mark.fault("Database", "failover to an asynchronous standby")
@pytest.mark.parametrize("patroni", [False], indirect=True, ids=["asynchronous"])
async def test_a_failover_to_an_asynchronous_standby_loses_the_unreplicated_end_and_leaves_nothing_stuck(
    crew: Crew, patroni: Patroni, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(WORKERS, slots=8, ttl="3s")
    primary = await asyncio.to_thread(patroni.primary)
    forgotten, once = [await submit(watcher, name=name, max_attempts=3) for name in ("act", "act_once")]
    actors = [await stage.arrival(task) for task in (forgotten, once)]
    async with load(database_url, milliseconds=20) as submitted:
        await submitted.more(100)
        known = list(submitted.accepted)
        await eventually(lambda: asyncio.to_thread(patroni.replicated, primary))
        standing = stop_replication(patroni, primary)
        seen = len(submitted.accepted) + 1  # one may have been written before, and answered after
        await submitted.more(100)
        for actor in actors:
            actor.tell("return 1")
        for task in (forgotten, once):
            assert await terminal(watcher, task) == "SUCCEEDED"  # by a primary that nobody copies
    assert all(process.status() == psutil.STATUS_STOPPED for process in standing)
    await until(watcher, OPEN, is_=lambda count: count == 0)  # everybody rests: no claim is under way
    await asyncio.to_thread(primary.kill)
    await asyncio.to_thread(patroni.primary, but=primary)
    async with await AsyncConnection.connect(database_url, autocommit=True) as again:
        survived = await present(again, submitted.accepted)
        assert all(survived[: len(known)]), "what a standby had confirmed is gone"
        assert not any(survived[seen:]), "the fault missed: what nobody had copied is there"
        assert sorted(survived, reverse=True) == survived, "what is lost is not the end"
        async with load(database_url, milliseconds=20) as later:
            await later.more(100)
        (await stage.arrival(forgotten, 2)).tell("return 2")
        await until(again, OPEN, is_=lambda count: count == 0, seconds=60)
        assert all(await present(again, later.accepted))
        assert await history(again, forgotten) == [(1, False, "released")]
        # Its worker remembers that it had run it, and nobody knows how it ended.
        assert (await row(again, once))["failure_code"] == "interrupted"
        assert stage.starts(once) == 1
        states = "SELECT array_agg(DISTINCT state) FROM fleet.task WHERE id = ANY (%s)"
        assert await value(again, states, later.accepted) == ["SUCCEEDED"]
    assert alive(workers)


def stop_replication(patroni: Patroni, primary: Node) -> list[psutil.Process]:
    """Stop the processes that send the log: from now on no standby learns of anything. Return them, standing still."""
    with psycopg.connect(patroni.url_at(primary), autocommit=True) as connection:
        senders = [psutil.Process(pid) for (pid,) in connection.execute("SELECT pid FROM pg_stat_replication")]
    assert len(senders) == WORKERS - 1
    for sender in senders:
        sender.suspend()
    return senders
