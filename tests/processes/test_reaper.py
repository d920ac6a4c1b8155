"""Many die at once, many reap at once, and reapers die in the middle of it: each task is settled once."""

import signal
from uuid import UUID

import pytest

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import Crew, Sink, terminal, until, value, waits_for_lock
from tests.processes.oracle import judge_all
from tests.processes.stage import Actor, Stage
from tests.support import claim_some, counters, expire_lease, new_lease, submit

DEAD = 500
RUNNING = "SELECT count(*) FROM fleet.task WHERE state = 'RUNNING'"
UNCLEARED = "SELECT count(*) FROM fleet.lease WHERE state = 'REAPED' AND cleared_at IS NULL"


async def leave_dead(connection: AsyncConnection, count: int, queue: str) -> list[UUID]:
    """Tasks of a worker that has vanished: every other one may be repeated."""
    tasks = [
        await submit(connection, name=name, queue=queue) for _ in range(count // 2) for name in ("quick", "quick_once")
    ]
    lease = await new_lease(connection, worker="vanished", queues=[queue])
    for name in ("quick", "quick_once"):
        await claim_some(connection, lease, count, name=name, queue=queue, idempotent=name == "quick")
    await expire_lease(connection, lease)
    return tasks


async def test_six_of_ten_workers_killed_at_once_the_four_settle_it_all(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(10, slots=2)
    tasks = [await submit(watcher, name=name) for name in ("act", "act_once") * 10]
    actors = [await stage.arrival(task) for task in tasks]
    doomed = workers[:6]
    lost = [actor for actor in actors if actor.pid in {worker.pid for worker in doomed}]
    assert len(lost) == 12

    def succeed(actor: Actor) -> None:
        actor.tell("effect")
        actor.tell("return 2")

    stage.then = succeed
    for worker in doomed:
        worker.send(signal.SIGKILL)
    for worker in doomed:
        worker.kill()
    await until(watcher, "SELECT count(*) FROM fleet.attempt", is_=lambda settled: settled == 12)
    for actor in actors:
        if actor not in lost:  # what the living run was touched by nobody
            succeed(actor)
    for task in tasks:
        await terminal(watcher, task)
    for story in await judge_all(watcher, sink):
        was_lost = story.task["id"] in {actor.task_id for actor in lost}
        once = story.task["name"] == "act_once"
        assert story.task["losses"] == was_lost, story
        assert story.task["state"] == ("FAILED" if once and was_lost else "SUCCEEDED"), story
    await until(watcher, UNCLEARED, is_=lambda count: count == 0)


async def test_five_reapers_at_once_over_five_hundred_dead_tasks_settle_each_once(
    crew: Crew, watcher: AsyncConnection
) -> None:
    tasks = await leave_dead(watcher, DEAD, "elsewhere")
    assert await value(watcher, RUNNING) == DEAD
    await crew.workers(5)
    await until(watcher, RUNNING, is_=lambda count: count == 0)
    await until(watcher, UNCLEARED, is_=lambda count: count == 0)
    half = len(tasks) // 2
    assert await counters(watcher) == {
        ("lease_expirations", "", ""): 1,
        ("reclaims", "elsewhere", ""): half,
        ("dead_letters", "elsewhere", "lease_expired"): half,
    }
    states = "SELECT state, losses, attempt, count(*)::int FROM fleet.task GROUP BY 1, 2, 3 ORDER BY 1"
    assert await (await watcher.execute(states)).fetchall() == [("FAILED", 1, 1, half), ("QUEUED", 1, 1, half)]
    assert await value(watcher, "SELECT count(*) FROM fleet.attempt WHERE outcome = 'lost'") == DEAD


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.fault("Reaper", "a reaper is killed in the middle of a sweep")
@pytest.mark.fault("Reaper", "a reaper is stopped in the middle of a sweep")
async def test_a_reaper_that_is_killed_or_stopped_in_the_middle_of_a_sweep_leaves_nothing_behind(
    crew: Crew, watcher: AsyncConnection, locker: AsyncConnection, fate: signal.Signals
) -> None:
    tasks = await leave_dead(watcher, 40, "elsewhere")
    reaper = await crew.worker(lock_timeout="1800ms", statement_timeout="1900ms")
    # It will wait where it counts, with all the tasks locked: the test has written that row, and may yet take it back.
    await locker.execute(
        "INSERT INTO fleet.counter VALUES (%s, 'reclaims', 'elsewhere', '', 1)", (await crew.lease_of(reaper),)
    )
    sweeping = await waits_for_lock(watcher, "maintenance")
    assert await value(watcher, "SELECT state FROM fleet.lease WHERE worker = 'vanished'") == "REAPED"
    assert await value(watcher, RUNNING) == len(tasks)
    if fate == signal.SIGKILL:
        reaper.kill()
        await watcher.execute("SELECT pg_terminate_backend(%s, 5000)", (sweeping,))
        assert await value(watcher, RUNNING) == len(tasks)
    else:  # its statement will end, and nobody will read the answer
        reaper.stop()
    await locker.rollback()
    await crew.workers(2)
    await until(watcher, RUNNING, is_=lambda count: count == 0)
    await until(watcher, UNCLEARED, is_=lambda count: count == 0)
    counted = await counters(watcher)
    assert counted["reclaims", "elsewhere", ""] == len(tasks) // 2
    assert counted["dead_letters", "elsewhere", "lease_expired"] == len(tasks) // 2
    assert await value(watcher, "SELECT count(*) FROM fleet.attempt WHERE outcome = 'lost'") == len(tasks)
    # The reaper itself is reaped by the others, like anybody.
    await until(watcher, "SELECT state = 'REAPED' FROM fleet.lease WHERE pid = %s", reaper.pid)
