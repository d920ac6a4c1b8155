"""A worker dies at every seam of its code, and by the kernel's hand: idempotent → once valid; else → at most one start."""

import signal
from typing import NamedTuple

import pytest

from fleet.postgres.database import AsyncConnection
from fleet.testing.faultpoints import FaultPoints
from tests.faults.cgroup import control_group
from tests.faults.seams import stand
from tests.faults.steps import NOW, STATE, except_of, recovered, submit_both
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.oracle import judge_all
from tests.processes.stage import Stage
from tests.support import row

MEGABYTE = 1024 * 1024


class Seam(NamedTuple):
    """What a death at this point leaves of a task that must not be repeated; the one beside it may be, and is."""

    point: str
    fault: str  # as the catalogue calls it, or as is plain
    once: str = "FAILED"
    starts: int = 1
    lost: int = 2  # of the two tasks
    returns: bool = True  # the handler of the one that must not be repeated has ended when the point is reached


SEAMS = [
    Seam("register.after", "SIGKILL of an idle worker", once="SUCCEEDED", lost=0),
    Seam("claim.before", "SIGKILL of an idle worker", once="SUCCEEDED", lost=0),
    Seam("claim.after", "SIGKILL after the claim, before the handler", starts=0),
    Seam("start.before:act_once", "SIGKILL after the claim, before the handler", starts=0),
    Seam("handler.enter:act_once", "SIGKILL after the claim, before the handler", starts=0),
    Seam("handler.leave:act_once", "SIGKILL after the effect, before the settlement"),
    Seam("settle.before", "SIGKILL after the effect, before the settlement"),
    Seam("settle.after", "SIGKILL between the COMMIT and its reply", once="SUCCEEDED", lost=1),
    Seam("renew.before", "SIGKILL inside the handler", returns=False),
    Seam("renew.after", "SIGKILL inside the handler", returns=False),
    Seam("drain.before", "SIGKILL in a drain", returns=False),
    Seam("drain.after", "SIGKILL in a drain", returns=False),
]


def each_seam() -> list[object]:
    """The seams, each marked with its fault."""
    return [pytest.param(seam, id=seam.point, marks=pytest.mark.fault("Death", seam.fault)) for seam in SEAMS]


@pytest.mark.parametrize("seam", each_seam())
async def test_killed_at_a_seam_what_may_be_repeated_is_done_and_what_may_not_is_started_once_at_most(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink, seam: Seam
) -> None:
    repeatable, once = await submit_both(watcher)
    with FaultPoints(seam.point) as points:
        victim, hit = await stand(points, seam.point, crew, stage, watcher, (repeatable, once), returns=seam.returns)
        killed_at = await value(watcher, NOW)
        hit.die()
        assert await victim.ended() == -signal.SIGKILL

    await recovered(watcher, seam.fault, [repeatable, once][: seam.lost], killed_at)
    assert await terminal(watcher, once) == seam.once
    assert await terminal(watcher, repeatable) == "SUCCEEDED"
    found = await row(watcher, once)
    assert (found["failure_code"], found["attempt"]) == ("lease_expired" if seam.once == "FAILED" else None, 1)
    assert sink.attempts("start", once) == [1] * seam.starts
    assert (await row(watcher, repeatable))["attempt"] == (2 if seam.lost else 1)
    await until(watcher, "SELECT state = 'REAPED' AND cleared_at IS NOT NULL FROM fleet.lease WHERE pid = %s", hit.pid)
    await judge_all(watcher, sink)


@pytest.mark.fault("Death", "OOM kill")
async def test_killed_by_the_kernel_for_want_of_memory_a_worker_is_replaced_and_its_tasks_are_settled(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    victim = await crew.worker(slots=2)
    lease = await crew.lease_of(victim)
    stage.then = except_of(victim.pid)
    repeatable, once = await submit_both(watcher)
    actors = [await stage.arrival(task) for task in (repeatable, once)]
    await crew.worker(slots=2)
    with control_group("memory") as group:
        group.limit_memory(64 * MEGABYTE)
        group.take(victim.pid)
        await actors[1].order("effect")
        killed_at = await value(watcher, NOW)
        actors[0].tell(f"print {512 * MEGABYTE}")
        assert await victim.ended() == -signal.SIGKILL
        assert group.killed() == 1
    await recovered(watcher, "OOM kill", [repeatable, once], killed_at)
    assert await terminal(watcher, once) == "FAILED"
    assert (await row(watcher, once))["failure_code"] == "lease_expired"
    assert (sink.attempts("start", once), sink.attempts("effect", once)) == ([1], [1])
    assert await terminal(watcher, repeatable) == "SUCCEEDED"
    assert (await row(watcher, repeatable))["attempt"] == 2
    await until(watcher, STATE, lease, is_=lambda state: state == "REAPED")
    await judge_all(watcher, sink)


@pytest.mark.parametrize("round_", range(3))
@pytest.mark.fault("Death", "SIGKILL inside the handler")
async def test_sixteen_tasks_of_a_killed_worker_are_settled_within_a_lease_and_two_looks(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink, round_: int
) -> None:
    victim = await crew.worker(slots=16)
    stage.then = except_of(victim.pid)
    tasks = [task for _ in range(8) for task in await submit_both(watcher)]
    for task in tasks:
        await stage.arrival(task)
    await crew.workers(2, slots=8)
    killed_at = await value(watcher, NOW)
    victim.kill()
    await recovered(watcher, "SIGKILL inside the handler", tasks, killed_at)
    for repeatable, once in zip(tasks[::2], tasks[1::2], strict=True):
        assert await terminal(watcher, once) == "FAILED"
        assert await terminal(watcher, repeatable) == "SUCCEEDED"
    await judge_all(watcher, sink)
