"""A worker stands still at a seam of its code until others have settled its tasks: what it then does changes nothing."""

import signal
from typing import NamedTuple

import pytest

from fleet.postgres.database import AsyncConnection
from fleet.testing.faultpoints import FaultPoints
from tests.faults.cgroup import control_group
from tests.faults.seams import stand
from tests.faults.steps import STATE, except_of, play, submit_both
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.oracle import judge_all
from tests.processes.stage import Stage
from tests.support import row, submit

LOST = "SELECT count(*) FROM fleet.attempt WHERE outcome = 'lost' AND NOT late"
LATE = "SELECT count(*) FROM fleet.attempt WHERE late"


class Seam(NamedTuple):
    """Where the zombie stood, and what is seen of it afterwards; of two tasks one may not be repeated."""

    point: str
    once: str = "FAILED"
    starts: tuple[int, ...] = (1,)  # how often the task that must not be repeated may have been started
    lost: int = 2
    returns: bool = True  # its handler has ended, or will at once, when the point is reached


SEAMS = [
    Seam("claim.after", starts=(0,)),
    Seam("start.before:act_once", starts=(0, 1)),
    Seam("handler.enter:act_once"),
    Seam("handler.leave:act_once"),
    Seam("settle.before"),
    Seam("settle.after", once="SUCCEEDED", lost=1),
    Seam("renew.before", returns=False),
    Seam("renew.after", returns=False),
    Seam("drain.before", returns=False),
    Seam("drain.after", returns=False),
]


@pytest.mark.fault("Stall", "SIGSTOP for longer than the TTL, then SIGCONT")
@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.point)
async def test_stopped_at_a_seam_for_longer_than_its_lease_a_zombie_changes_nothing_and_is_kept_as_evidence(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink, seam: Seam
) -> None:
    repeatable, once = await submit_both(watcher)
    with FaultPoints(seam.point) as points:
        zombie, _ = await stand(points, seam.point, crew, stage, watcher, (repeatable, once), returns=seam.returns)
        lease = await crew.lease_of(zombie)
        zombie.stop()
        await until(watcher, STATE, lease, is_=lambda state: state == "REAPED")
        await until(watcher, LOST, is_=lambda lost: lost == seam.lost)
        assert await terminal(watcher, once) == seam.once
        assert await terminal(watcher, repeatable) == "SUCCEEDED"
        before = [await row(watcher, task) for task in (repeatable, once)]
        points.release_all()
        zombie.send(signal.SIGCONT)
        if not seam.returns:
            play(await stage.arrival(once))
        await until(watcher, LATE, is_=lambda late: late == seam.lost)

    assert [await row(watcher, task) for task in (repeatable, once)] == before
    assert len(sink.attempts("start", once)) in seam.starts
    if seam.point.startswith("drain"):
        assert await zombie.ended() == 0
    else:
        assert await value(watcher, STATE, await crew.lease_of(zombie, but=lease)) == "LIVE"
    await judge_all(watcher, sink)


@pytest.mark.fault("Stall", "SIGSTOP for longer than the TTL, then SIGCONT")
async def test_a_claim_that_was_about_to_be_sent_when_its_worker_was_stopped_takes_nothing_under_the_dead_lease(
    crew: Crew, watcher: AsyncConnection, sink: Sink
) -> None:
    with FaultPoints("claim.before") as points:
        zombie = crew.start(queues=["mine"], faultpoints=points.environment["FLEET_FAULTPOINTS"])
        assert (await points.hit("claim.before")).pid == zombie.pid
        lease = await crew.lease_of(zombie)
        await crew.worker(queues=["elsewhere"])
        zombie.stop()
        await until(watcher, "SELECT cleared_at IS NOT NULL FROM fleet.lease WHERE id = %s", lease)
        task = await submit(watcher, name="quick_once", queue="mine")
        points.release_all()
        zombie.send(signal.SIGCONT)
        assert await terminal(watcher, task) == "SUCCEEDED"
    assert await crew.lease_of(zombie, but=lease) != lease
    assert (await row(watcher, task))["attempt"] == 1
    assert await value(watcher, "SELECT count(*) FROM fleet.attempt") == 0
    await judge_all(watcher, sink)


@pytest.mark.fault("Stall", "CPU starved")
async def test_given_a_hundredth_of_a_processor_a_worker_loses_its_lease_and_nothing_is_done_twice(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    starved = await crew.worker(slots=2)
    lease = await crew.lease_of(starved)
    stage.then = except_of(starved.pid)
    repeatable, once = [await submit(watcher, name=name) for name in ("act_in_thread", "act_in_thread_once")]
    actors = [await stage.arrival(task) for task in (repeatable, once)]
    await crew.worker(slots=2)
    with control_group("cpu") as group:
        group.take(starved.pid)
        for actor in actors:
            await actor.order("spin 15")
        group.limit_processor(percent=1)
        await until(watcher, STATE, lease, is_=lambda state: state == "REAPED")
        await until(watcher, LOST, is_=lambda lost: lost == 2)
        assert group.throttled() > 10
        group.free_processor()
        for actor in actors:
            play(actor)
        await until(watcher, LATE, is_=lambda late: late == 2, seconds=60)
    assert await terminal(watcher, once) == "FAILED"
    assert await terminal(watcher, repeatable) == "SUCCEEDED"
    assert (sink.attempts("start", once), sink.attempts("start", repeatable)) == ([1], [1, 2])
    assert await value(watcher, STATE, await crew.lease_of(starved, but=lease)) == "LIVE"
    await judge_all(watcher, sink)
