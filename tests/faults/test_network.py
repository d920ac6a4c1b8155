"""The network between the workers and the database misbehaves: what is owed is done once, and no zombie is believed."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from fleet.postgres.database import AsyncConnection
from fleet.testing.proxy import Proxy
from tests.faults.steps import NOW, OPEN, REAPED, STATE, play, submit_both
from tests.processes.crew import Crew, Process, Sink, terminal, until, value
from tests.processes.load import Load, load
from tests.processes.oracle import Story, judge_all
from tests.processes.stage import Actor, Stage
from tests.support import counters, history, row, submit

LATE = "SELECT count(*) FROM fleet.attempt WHERE late"
SINCE = "SELECT clock_timestamp() > %s + %s * interval '1 s'"
RENEWED = "SELECT renewed_at > %s FROM fleet.lease WHERE id = %s"
TOOK = "SELECT max(extract(epoch FROM finished_at - started_at))::float8 FROM fleet.task"

Break = Callable[[Proxy], None]
BREAKS: dict[str, Break] = {
    "both ways": lambda proxy: proxy.freeze("both"),
    "to the server": lambda proxy: proxy.freeze("to_server"),
    "to the client": lambda proxy: proxy.freeze("to_client"),
    "half-open": lambda proxy: proxy.half_open(),
}


def broken(name: str, fault: str) -> object:
    return pytest.param(name, marks=pytest.mark.fault("Network", fault), id=name.replace(" ", "-"))


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


async def settled(watcher: AsyncConnection, sink: Sink, seconds: float = 90) -> list[Story]:
    """Nothing is left queued or running, under whatever lease, and everything that is on record fits together."""
    await until(watcher, OPEN, is_=lambda count: count == 0, seconds=seconds)
    return await judge_all(watcher, sink)


async def judge_load(watcher: AsyncConnection, sink: Sink, submitted: Load, *, unharmed: bool) -> None:
    """All that was accepted is there and has succeeded, or is not to be repeated and lost its worker (not if unharmed)."""
    told = await settled(watcher, sink)
    found = {story.task["id"]: story for story in told}
    for task in submitted.accepted:
        assert found[task].task["state"] == "SUCCEEDED" or found[task].task["failure_code"] == "lease_expired"
    if unharmed:
        assert {story.task["state"] for story in told} == {"SUCCEEDED"}
        assert sum(story.task["losses"] + story.task["failures"] for story in told) == 0
        assert await value(watcher, REAPED) == 0
        assert await counters(watcher) == {}


async def at_work(
    proxy: Proxy, crew: Crew, stage: Stage, watcher: AsyncConnection, ttl: str = "2s"
) -> tuple[Process, tuple[UUID, UUID], tuple[Actor, Actor]]:
    """A worker behind the proxy that has settled something before, with two handlers at work; and another, elsewhere."""
    worker = await crew.worker(database_url=proxy.url, slots=2, ttl=ttl)
    for name in ("quick", "retried"):  # from now on settling is one message
        assert await terminal(watcher, await submit(watcher, name=name)) == "SUCCEEDED"
    repeatable, once = await submit_both(watcher)
    actors = await stage.arrival(repeatable), await stage.arrival(once)
    await crew.worker(slots=2, ttl=ttl)
    return worker, (repeatable, once), actors


@pytest.mark.parametrize(
    "how",
    [
        broken("both ways", "a partition longer than the TTL"),
        broken("to the server", "one way only: nothing reaches the server, longer than the TTL"),
        broken("half-open", "half-open behind a middlebox that acknowledges, longer than the TTL"),
    ],
)
async def test_a_worker_that_reaches_nobody_for_longer_than_its_lease_is_replaced_and_its_reports_are_refused(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, how: str
) -> None:
    zombie, (repeatable, once), actors = await at_work(proxy, crew, stage, watcher)
    lease = await crew.lease_of(zombie)
    BREAKS[how](proxy)
    await until(watcher, STATE, lease, is_=lambda state: state == "REAPED")
    assert await terminal(watcher, once) == "FAILED"
    successor = await stage.arrival(repeatable, 2)
    assert successor.pid != zombie.pid
    before = [await row(watcher, task) for task in (repeatable, once)]
    await actors[1].order("effect")  # it is not to be repeated, so it was not stopped, and now it reports
    actors[1].tell("return 1")
    for actor in actors:  # the other one was stopped when its lease was in doubt
        await actor.gone()
    proxy.heal()
    await until(watcher, LATE, is_=lambda count: count == 2)
    assert [await row(watcher, task) for task in (repeatable, once)] == before
    assert await history(watcher, repeatable) == [(1, False, "lost"), (1, True, "released")]
    assert await history(watcher, once) == [(1, False, "lost"), (1, True, "succeeded")]
    new = await crew.lease_of(zombie, but=lease)
    assert await value(watcher, STATE, new) == "LIVE"
    play(successor)
    assert await terminal(watcher, repeatable) == "SUCCEEDED"
    await settled(watcher, sink)
    assert sink.attempts("effect", once) == [1]
    assert sink.attempts("effect", repeatable) == [2]
    assert (await row(watcher, once))["failure_code"] == "lease_expired"
    assert (await counters(watcher))["fence_rejections", "default", ""] == 2


@pytest.mark.fault("Network", "one way only: nothing comes back from the server, longer than the TTL")
async def test_a_worker_that_hears_nobody_for_longer_than_its_lease_has_done_what_it_said_before_it_lost_it(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink
) -> None:
    """A settlement that arrived is valid, whether or not its author learns of it; and its author never repeats it as late."""
    deaf, (repeatable, once), actors = await at_work(proxy, crew, stage, watcher)
    lease = await crew.lease_of(deaf)
    BREAKS["to the client"](proxy)
    play(actors[1])
    assert await terminal(watcher, once) == "SUCCEEDED"
    await until(watcher, STATE, lease, is_=lambda state: state == "REAPED")
    successor = await stage.arrival(repeatable, 2)
    assert successor.pid != deaf.pid
    await actors[0].gone()
    proxy.heal()
    await until(watcher, LATE, is_=lambda count: count == 1)
    assert await history(watcher, repeatable) == [(1, False, "lost"), (1, True, "released")]
    play(successor)
    assert await terminal(watcher, repeatable) == "SUCCEEDED"
    await settled(watcher, sink)
    assert sink.attempts("effect", once) == [1]
    assert await history(watcher, once) == []
    assert await counters(watcher) == {
        ("lease_expirations", "", ""): 1,
        ("reclaims", "default", ""): 1,
        ("fence_rejections", "default", ""): 1,
    }


@pytest.mark.parametrize(
    "how",
    [
        broken("both ways", "a partition shorter than the TTL"),
        broken("to the server", "one way only: nothing reaches the server, shorter than the TTL"),
        broken("to the client", "one way only: nothing comes back from the server, shorter than the TTL"),
        broken("half-open", "half-open behind a middlebox that acknowledges, shorter than the TTL"),
    ],
)
async def test_a_worker_that_is_cut_off_for_less_than_its_lease_loses_nothing(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, how: str
) -> None:
    worker, tasks, actors = await at_work(proxy, crew, stage, watcher, ttl="10s")
    lease = await crew.lease_of(worker)
    for _ in range(2):
        BREAKS[how](proxy)
        began = await value(watcher, NOW)
        await until(watcher, SINCE, began, 2.0)
        if how != "to the client":
            assert not await value(watcher, RENEWED, began, lease), "no renewal came through"
        proxy.heal()
        await until(watcher, RENEWED, await value(watcher, NOW), lease)
    for actor in actors:
        play(actor)
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
    await settled(watcher, sink)
    for task in tasks:
        assert sink.attempts("start", task) == sink.attempts("effect", task) == [1]
        assert await history(watcher, task) == []
    assert await value(watcher, STATE, lease) == "LIVE"
    assert await counters(watcher) == {}


@asynccontextmanager
async def probe(proxy: Proxy) -> AsyncIterator[AsyncConnection]:
    """A connection of the test's own through the proxy, opened while the network was good."""
    async with await AsyncConnection.connect(proxy.url, autocommit=True) as connection:
        yield connection


async def round_trip(connection: AsyncConnection) -> float:
    began = asyncio.get_running_loop().time()
    await connection.execute("SELECT 1")
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize(
    ("seconds", "ttl"),
    [
        pytest.param(0.05, "6s", marks=pytest.mark.fault("Network", "a delay of 50 ms"), id="50ms"),
        pytest.param(0.5, "2s", marks=pytest.mark.fault("Network", "a delay of 500 ms"), id="500ms"),
        pytest.param(2.0, "2s", marks=pytest.mark.fault("Network", "a delay of 2000 ms"), id="2000ms"),
    ],
)
async def test_a_slow_network_costs_at_most_the_leases_of_those_behind_it(
    crew: Crew, proxy: Proxy, watcher: AsyncConnection, sink: Sink, database_url: str, seconds: float, ttl: str
) -> None:
    little = seconds < 0.1
    await crew.workers(2, database_url=proxy.url, slots=4, ttl=ttl)
    if not little:
        await crew.worker(slots=2, ttl=ttl)  # somebody must do the work
    async with probe(proxy) as prober, load(database_url, milliseconds=20, every_seconds=0.03) as submitted:
        await submitted.more(20)
        proxy.delay(seconds)
        began, marked = await value(watcher, NOW), len(sink.facts())
        assert await round_trip(prober) >= 2 * seconds
        await until(watcher, SINCE, began, 5.0)
        assert len(sink.facts()) > marked, "the work goes on"
        proxy.heal()
        await submitted.more(20)
    await judge_load(watcher, sink, submitted, unharmed=little)


@pytest.mark.fault("Network", "a throttle")
async def test_claims_that_take_longer_than_the_ttl_to_arrive_cost_nobody_a_lease(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink
) -> None:
    """Heartbeats have a connection of their own, so that no megabytes stand before them."""
    stage.then = play
    worker = await crew.worker(database_url=proxy.url, slots=8, ttl="3s")
    lease = await crew.lease_of(worker)
    proxy.throttle(13_000)
    text = "x" * 7_000
    async with watcher.transaction():
        tasks = [await submit(watcher, name="act_once", args=f'{{"text": "{text}"}}') for _ in range(16)]
    for task in tasks:
        assert await terminal(watcher, task, seconds=90) == "SUCCEEDED"
    assert await value(watcher, TOOK) > 3.0
    await settled(watcher, sink)
    for task in tasks:
        assert sink.attempts("effect", task) == [1]
    assert await value(watcher, STATE, lease) == "LIVE"
    assert await counters(watcher) == {}


async def break_again_and_again(proxy: Proxy, faults: list[Break], pauses: tuple[float, float], times: int) -> int:
    """Make that many troubles, healed each time; return how many found connections to break."""
    chance, met = random.Random(7), 0
    for _ in range(times):
        await asyncio.sleep(chance.uniform(*pauses))
        met += proxy.connections > 0
        chance.choice(faults)(proxy)
        await asyncio.sleep(chance.uniform(*pauses) / 2)
        proxy.heal()
    return met


@pytest.mark.fault("Network", "random resets")
async def test_random_resets_of_all_connections_cost_nobody_a_lease_or_a_task(
    crew: Crew, proxy: Proxy, watcher: AsyncConnection, sink: Sink
) -> None:
    await crew.workers(2, database_url=proxy.url, slots=4, ttl="6s")
    async with load(proxy.url, milliseconds=20, every_seconds=0.03) as submitted:
        await submitted.more(20)
        assert await break_again_and_again(proxy, [Proxy.reset], (0.5, 1.5), 8) == 8
        await submitted.more(20)
    await judge_load(watcher, sink, submitted, unharmed=True)


def refuse_and_reset(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.reset()


@pytest.mark.fault("Network", "flapping")
async def test_a_network_that_flaps_in_every_way_delays_work_and_loses_none(
    crew: Crew, proxy: Proxy, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(2, database_url=proxy.url, slots=4, ttl="2s")
    faults = [*BREAKS.values(), refuse_and_reset]
    async with load(proxy.url, milliseconds=20, every_seconds=0.03) as submitted:
        await submitted.more(20)
        assert await break_again_and_again(proxy, faults, (0.2, 1.6), 12) == 12
        await submitted.more(20)
    await judge_load(watcher, sink, submitted, unharmed=False)
    assert [worker.popen.poll() for worker in workers] == [None, None]
