"""A worker stands still and comes back: at most one reclaim, and what a zombie reports is refused, counted and kept."""

import asyncio
import os
import random
import signal
from datetime import timedelta
from uuid import UUID

import pytest

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import Crew, Process, Sink, terminal, until, value
from tests.processes.oracle import judge_all
from tests.processes.stage import Actor, Stage
from tests.support import counters, history, row, submit

STALLS = int(os.environ.get("FLEET_TEST_STALLS", "16"))  # 300 for the whole number
AT_ONCE = 8
HALF_A_SECOND = timedelta(seconds=0.5)
STATE = "SELECT state FROM fleet.lease WHERE id = %s"


async def late_reports(watcher: AsyncConnection, count: int) -> None:
    await until(watcher, "SELECT count(*) FROM fleet.attempt WHERE late", is_=lambda late: late == count)


@pytest.mark.fault("Stall", "SIGSTOP for longer than the TTL, then SIGCONT")
async def test_a_worker_stopped_for_longer_than_its_lease_is_refused_and_then_works_on_under_a_new_one(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    zombie = await crew.worker(slots=4)
    lease = await crew.lease_of(zombie)
    repeatable = [await submit(watcher, name=name) for name in ("act", "act_in_thread")]
    once = [await submit(watcher, name=name) for name in ("act_once", "act_in_thread_once")]
    actors = [await stage.arrival(task) for task in repeatable + once]
    rescuer = await crew.worker(slots=2)
    zombie.stop()
    await until(watcher, STATE, lease, is_=lambda state: state == "REAPED")
    for task in once:
        assert await terminal(watcher, task) == "FAILED"
    successors = [await stage.arrival(task, 2) for task in repeatable]
    assert {actor.pid for actor in successors} == {rescuer.pid}
    before = [await row(watcher, task) for task in repeatable + once]

    for actor in actors:
        actor.tell("effect")
        actor.tell('return "of a zombie"')
    zombie.send(signal.SIGCONT)
    await late_reports(watcher, 4)

    assert [await row(watcher, task) for task in repeatable + once] == before
    for task in [repeatable[1], *once]:
        assert await history(watcher, task) == [(1, False, "lost"), (1, True, "succeeded")]
    assert (await history(watcher, repeatable[0]))[0] == (1, False, "lost")  # its handler was cancelled, or was quicker
    assert (await counters(watcher))["fence_rejections", "default", ""] == 4
    new = await crew.lease_of(zombie, but=lease)
    assert await value(watcher, STATE, new) == "LIVE"
    fresh = await submit(watcher, name="quick")  # the rescuer has no free slot: only the zombie can
    assert await terminal(watcher, fresh) == "SUCCEEDED"
    assert {fact.pid for fact in sink.facts() if fact.task_id == fresh} == {zombie.pid}
    for actor in successors:
        actor.tell('return "of the living"')
    for task in repeatable:
        assert await terminal(watcher, task) == "SUCCEEDED"
        assert (await row(watcher, task))["result"] == "of the living"
    await judge_all(watcher, sink)


@pytest.mark.fault("Stall", "SIGSTOP for less than the TTL")
async def test_a_worker_stopped_for_less_than_its_lease_loses_nothing(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    worker = await crew.worker(slots=2)
    lease = await crew.lease_of(worker)
    tasks = [await submit(watcher, name=name) for name in ("act", "act_once")]
    actors = [await stage.arrival(task) for task in tasks]
    await crew.worker(slots=2)
    for _ in range(2):
        worker.stop()
        stopped = await value(watcher, "SELECT renewed_at FROM fleet.lease WHERE id = %s", lease)
        await until(watcher, "SELECT clock_timestamp() > %s + interval '1.1 s'", stopped)
        worker.send(signal.SIGCONT)
        await until(watcher, "SELECT renewed_at > %s FROM fleet.lease WHERE id = %s", stopped, lease)
    for actor in actors:
        actor.tell("return 1")
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
        assert sink.attempts("start", task) == [1]
    assert await value(watcher, STATE, lease) == "LIVE"
    assert await value(watcher, "SELECT count(*) FROM fleet.attempt") == 0
    assert await counters(watcher) == {}


async def stall(watcher: AsyncConnection, zombie: Process, lease: UUID, offset_seconds: float) -> None:
    """Stop a worker until so long after the end of its lease, by the database's clock."""
    zombie.stop()
    remaining = "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM fleet.lease WHERE id = %s"
    async with asyncio.timeout(30):
        await asyncio.sleep(max(0.0, await value(watcher, remaining, lease) + offset_seconds))
    zombie.send(signal.SIGCONT)


@pytest.mark.timeout(60 + 15 * STALLS)
@pytest.mark.fault("Stall", "a stop that ends within 50 ms of the expiry, 300 times")
async def test_a_stop_that_ends_around_the_end_of_the_lease_is_either_nothing_or_one_reclaim(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    chance = random.Random(5)
    queues = [f"of-zombie-{number}" for number in range(AT_ONCE)]
    await crew.worker(name="reaper", queues=["nothing"])  # what is put back waits for the zombie and its new lease

    def rescue(actor: Actor) -> None:
        if actor.attempt > 1:
            actor.tell("effect")
            actor.tell("return 2")

    stage.then = rescue
    zombies = await asyncio.gather(*[crew.worker(slots=2, queues=[queue]) for queue in queues])
    for _ in range(0, STALLS, AT_ONCE):
        leases = [await crew.lease_of(zombie) for zombie in zombies]
        tasks = [
            await submit(watcher, name=name, queue=queue) for queue in queues for name in ("act", "act_in_thread_once")
        ]
        actors = [await stage.arrival(task) for task in tasks]
        # Half of them around the end of the lease, the others around the moment when a witness may accuse.
        offsets = [chance.uniform(-0.05, 0.05) if number % 2 else chance.uniform(0.1, 0.8) for number in range(AT_ONCE)]
        await asyncio.gather(*map(stall, [watcher] * AT_ONCE, zombies, leases, offsets))
        for actor in actors:
            actor.tell("effect")
            actor.tell("return 1")
        for task in tasks:
            await terminal(watcher, task)
        for zombie, lease in zip(zombies, leases, strict=True):
            if await value(watcher, STATE, lease) == "REAPED":
                await crew.lease_of(zombie, but=lease)
    reaped = (
        "SELECT count(*) FROM fleet.task JOIN fleet.attempt ON task_id = id WHERE name ~ 'once' AND outcome = 'lost'"
    )
    await late_reports_of_the_lost(watcher)
    told = await judge_all(watcher, sink)
    lost = [story for story in told if story.task["losses"]]
    assert len([story for story in lost if story.task["name"].endswith("once")]) == await value(watcher, reaped)
    for story in told:
        assert story.task["losses"] <= 1
        expected = "FAILED" if story.task["losses"] and story.task["name"].endswith("once") else "SUCCEEDED"
        assert story.task["state"] == expected, story
    assert 0 < len(lost) < len(told), "the fault has missed one of the two sides"
    print(f"{len(lost)} of {len(told)} tasks lost their lease")


async def late_reports_of_the_lost(watcher: AsyncConnection) -> None:
    """Every lost attempt was of a zombie that came back: each is reported late."""
    await until(
        watcher,
        "SELECT count(*) FILTER (WHERE outcome = 'lost') = count(*) FILTER (WHERE late) FROM fleet.attempt",
    )


@pytest.mark.fault("Stall", "the event loop is blocked")
async def test_an_event_loop_that_stands_still_for_longer_than_the_lease_does_not_end_the_lease(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    worker = await crew.worker(slots=2)
    lease = await crew.lease_of(worker)
    tasks = [await submit(watcher, name=name) for name in ("act", "act_once")]
    actors = [await stage.arrival(task) for task in tasks]
    await crew.worker(slots=2)
    blocked_at = await value(watcher, "SELECT clock_timestamp()")
    await actors[0].order("block 3.2")
    await until(watcher, "SELECT renewed_at > %s + interval '2.5 s' FROM fleet.lease WHERE id = %s", blocked_at, lease)
    for actor in actors:
        actor.tell("return 1")
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
        assert sink.attempts("start", task) == [1]
    assert await value(watcher, STATE, lease) == "LIVE"
    assert await counters(watcher) == {}


@pytest.mark.parametrize(("name", "deed"), [("act", "swallow"), ("act_in_thread", "block 60")])
@pytest.mark.fault("Stall", "a handler past its time limit")
@pytest.mark.fault("Stall", "an async handler that swallows its cancellation")
@pytest.mark.fault("Stall", "a thread that ignores everything")
async def test_a_handler_that_ignores_its_time_limit_is_settled_and_its_process_drains_and_exits_70(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink, name: str, deed: str
) -> None:
    worker = await crew.worker(slots=3, drain_timeout="3s")
    neighbour = await submit(watcher, name="act_once", max_attempts=1)
    neighbours = await stage.arrival(neighbour)
    once = await submit(watcher, name=f"{name}_once", timeout=HALF_A_SECOND)
    repeatable = await submit(watcher, name=name, timeout=HALF_A_SECOND)
    for task in (once, repeatable):
        await (await stage.arrival(task)).order(deed)
    assert await terminal(watcher, once) == "FAILED"
    assert (await row(watcher, once))["failure_code"] == "timeout"
    await until(watcher, "SELECT failures = 1 FROM fleet.task WHERE id = %s", repeatable)
    await until(watcher, "SELECT state = 'DRAINING' FROM fleet.lease")
    neighbours.tell("return 1")  # it is not harmed, and is waited for
    assert await terminal(watcher, neighbour) == "SUCCEEDED"
    # An exit at last, though what it runs never ends: bounded by the drain's time-out.
    assert await worker.ended() == 70
    assert await value(watcher, "SELECT state FROM fleet.lease") == "RELEASED"
    assert sink.attempts("start", once) == [1]


@pytest.mark.parametrize(("name", "deed"), [("act", "swallow"), ("act_in_thread", "block 60")])
@pytest.mark.fault("Stall", "an async handler that swallows its cancellation")
@pytest.mark.fault("Stall", "a thread that ignores everything")
async def test_a_drain_ends_though_a_handler_never_does(
    crew: Crew, stage: Stage, watcher: AsyncConnection, name: str, deed: str
) -> None:
    worker = await crew.worker(slots=2, drain_timeout="500ms")
    repeatable, once = [await submit(watcher, name=each) for each in (name, f"{name}_once")]
    for task in (repeatable, once):
        await (await stage.arrival(task)).order(deed)
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert (await row(watcher, once))["failure_code"] == "interrupted"
    found = await row(watcher, repeatable)
    assert (found["state"], found["attempt"], found["losses"], found["failures"]) == ("QUEUED", 1, 0, 0)
    assert await value(watcher, "SELECT state FROM fleet.lease") == "RELEASED"


@pytest.mark.fault("Stall", "nobody reads stdout")
async def test_a_full_pipe_behind_stdout_does_not_cost_the_lease(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    reading, writing = os.pipe()
    worker = await crew.worker(slots=2, output=writing)
    os.close(writing)
    lease = await crew.lease_of(worker)
    tasks = [await submit(watcher, name=name) for name in ("act", "act_in_thread_once")]
    await crew.worker(slots=2)
    began = await value(watcher, "SELECT clock_timestamp()")
    for task in tasks:
        await (await stage.arrival(task)).order("print 300000")
    await until(watcher, "SELECT renewed_at > %s + interval '2.5 s' FROM fleet.lease WHERE id = %s", began, lease)
    draining = asyncio.ensure_future(asyncio.to_thread(_read_all, reading))
    for task in tasks:
        (await stage.arrival(task)).tell("return 1")
        assert await terminal(watcher, task) == "SUCCEEDED"
        assert sink.attempts("start", task) == [1]
    assert await value(watcher, STATE, lease) == "LIVE"
    worker.kill()
    assert await draining >= 600_000


@pytest.mark.fault("Stall", "nobody reads stdout")
async def test_a_stalled_process_exits_though_nobody_reads_what_it_has_to_say(
    crew: Crew, stage: Stage, watcher: AsyncConnection
) -> None:
    reading, writing = os.pipe()
    worker = await crew.worker(slots=1, output=writing, stall_limit="1s")
    os.close(writing)
    task = await submit(watcher, name="act")
    await (await stage.arrival(task)).order("print 300000")
    assert await worker.ended() == 70
    os.close(reading)


@pytest.mark.fault("Stall", "CPU starved")
async def test_starved_of_its_processor_a_worker_holds_its_lease_or_loses_it_and_nothing_is_done_twice(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    hogs = await crew.workers(2, slots=2)
    tasks = [await submit(watcher, name=name) for name in ("act_in_thread", "act_in_thread_once") * 2]
    actors = [await stage.arrival(task) for task in tasks]

    def rescue(actor: Actor) -> None:
        actor.tell("effect")
        actor.tell("return 2")

    stage.then = rescue
    await crew.worker(slots=4)
    for actor in actors:
        await actor.order("nice 15")
    for actor in actors:
        await actor.order("hog 2.5" if actor.pid == hogs[0].pid else "spin 2.5")
        actor.tell("effect")
        actor.tell("return 1")
    for task in tasks:
        await terminal(watcher, task)
    await late_reports_of_the_lost(watcher)
    for story in await judge_all(watcher, sink):
        once = story.task["name"].endswith("once")
        assert story.task["state"] == ("FAILED" if once and story.task["losses"] else "SUCCEEDED"), story


def _read_all(descriptor: int) -> int:
    size = 0
    while part := os.read(descriptor, 65536):
        size += len(part)
    os.close(descriptor)
    return size
