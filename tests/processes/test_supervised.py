"""Workers that are children of a supervisor: their deaths are seen at once, and do not take the fleet down."""

import signal
from collections.abc import Sequence
from uuid import UUID

import psutil
import pytest

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import Crew, Process, Sink, terminal, until, value
from tests.processes.stage import Stage
from tests.support import counters, eventually, history, row, submit

LIVE = "SELECT count(*) FILTER (WHERE state = 'LIVE') FROM fleet.lease"


async def supervise(crew: Crew, watcher: AsyncConnection, children: int, **options: str | int) -> Process:
    supervisor = crew.start("supervise", str(children), **options)  # type: ignore[arg-type]
    await until(watcher, LIVE, is_=lambda live: live == children)
    return supervisor


async def seconds_until_settled(watcher: AsyncConnection, task: UUID, killed_at: object) -> float:
    """How long, by the database's clock, the loss of a task's first attempt took to be settled."""
    at = await until(watcher, "SELECT max(at) FROM fleet.attempt WHERE task_id = %s AND outcome = 'lost'", task)
    return float(await value(watcher, "SELECT extract(epoch FROM %s::timestamptz - %s)", at, killed_at))


async def all_gone(pids: Sequence[int]) -> None:
    async def probe() -> bool:
        return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)

    await eventually(probe)


@pytest.mark.fault("Death", "a child of the supervisor is killed")
async def test_a_killed_childs_tasks_are_settled_long_before_its_lease_would_have_ended(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    await supervise(crew, watcher, 2, slots=2, ttl="30s")
    tasks = [await submit(watcher, name=name) for name in ("act", "act_once", "act", "act_once")]
    actors = [await stage.arrival(task) for task in tasks]
    child = actors[0].pid
    lost = [actor for actor in actors if actor.pid == child]
    killed_at = await value(watcher, "SELECT clock_timestamp()")
    psutil.Process(child).kill()
    for actor in lost:
        assert await seconds_until_settled(watcher, actor.task_id, killed_at) < 1.0
    for task, actor in zip(tasks, actors, strict=True):
        if actor in lost and actor.task_id in (tasks[1], tasks[3]):
            assert (await row(watcher, task))["failure_code"] == "lease_expired"
            assert sink.attempts("start", task) == [1]
            continue
        last = await stage.arrival(task, 2) if actor in lost else actor
        last.tell("return null")
        assert await terminal(watcher, task) == "SUCCEEDED"
    await until(watcher, LIVE, is_=lambda live: live == 2)  # another child has taken its place
    assert await value(watcher, "SELECT count(*) FROM fleet.lease WHERE state = 'REAPED'") == 1


@pytest.mark.fault("Death", "the supervisor is killed")
async def test_when_the_supervisor_is_killed_its_children_drain(
    crew: Crew, stage: Stage, watcher: AsyncConnection
) -> None:
    supervisor = await supervise(crew, watcher, 2, slots=1, drain_timeout="60s")
    children = await value(watcher, "SELECT array_agg(pid) FROM fleet.lease")
    tasks = [await submit(watcher, name="act_once", max_attempts=1) for _ in range(2)]
    actors = [await stage.arrival(task) for task in tasks]
    waiting = await submit(watcher, name="act_once", max_attempts=1)
    supervisor.kill()
    await until(watcher, "SELECT bool_and(state = 'DRAINING') FROM fleet.lease")
    for actor in actors:
        actor.tell("return null")
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
    await until(watcher, "SELECT bool_and(state = 'RELEASED') FROM fleet.lease")
    await all_gone(children)
    assert (await row(watcher, waiting))["attempt"] == 0
    assert await counters(watcher) == {}


@pytest.mark.fault("Death", "a handler that leaves child processes behind")
async def test_a_handler_that_leaves_child_processes_behind_does_not_hide_the_death_of_its_worker(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    await supervise(crew, watcher, 1, slots=2, ttl="30s")
    repeatable, once = [await submit(watcher, name=name) for name in ("act", "act_once")]
    for task in (repeatable, once):
        await (await stage.arrival(task)).order("fork")
    worker = psutil.Process((await stage.arrival(once)).pid)

    async def left_behind() -> list[psutil.Process]:
        children = worker.children()
        return children if len(children) == 2 else []

    children = await eventually(left_behind)
    killed_at = await value(watcher, "SELECT clock_timestamp()")
    worker.kill()
    for task in (repeatable, once):
        assert await seconds_until_settled(watcher, task, killed_at) < 1.0
    assert all(child.is_running() for child in children)
    assert (await row(watcher, once))["failure_code"] == "lease_expired"
    (await stage.arrival(repeatable, 2)).tell("return null")
    assert await terminal(watcher, repeatable) == "SUCCEEDED"
    assert sink.attempts("start", once) == [1]


@pytest.mark.fault("Death", "a poison pill with eleven innocent neighbours")
async def test_a_poison_pill_spends_its_own_crash_budget_and_does_not_take_the_fleet_down(
    crew: Crew, watcher: AsyncConnection, sink: Sink
) -> None:
    supervisor = await supervise(crew, watcher, 2, slots=1)
    neighbours = [await submit(watcher, name="quick") for _ in range(5)]
    pill = await submit(watcher, name="poison")
    neighbours += [await submit(watcher, name="quick") for _ in range(6)]

    assert await terminal(watcher, pill) == "FAILED"
    found = await row(watcher, pill)
    assert (found["failure_code"], found["losses"], found["attempt"]) == ("crash_budget_exhausted", 3, 3)
    assert await history(watcher, pill) == [(attempt, False, "lost") for attempt in (1, 2, 3)]
    assert sink.attempts("start", pill) == [1, 2, 3]
    for task in neighbours:  # none ran beside it; at worst the end of the one before was not written yet
        assert await terminal(watcher, task) == "SUCCEEDED"
    assert await value(watcher, "SELECT sum(losses) FROM fleet.task WHERE name = 'quick'") <= 3
    await until(watcher, LIVE, is_=lambda live: live == 2)
    late = await submit(watcher, name="quick")
    assert await terminal(watcher, late) == "SUCCEEDED"
    assert (await counters(watcher))["dead_letters", "default", "crash_budget_exhausted"] == 1
    supervisor.send(signal.SIGTERM)
    assert await supervisor.ended() == 0
    assert await value(watcher, LIVE) == 0


@pytest.mark.xfail(
    reason="not promised yet: what is lost together comes back together, and is condemned together", strict=True
)
@pytest.mark.fault("Death", "a poison pill with eleven innocent neighbours")
async def test_a_poison_pill_does_not_spend_the_crash_budget_of_those_who_ran_beside_it(
    crew: Crew, stage: Stage, watcher: AsyncConnection
) -> None:
    await supervise(crew, watcher, 1, slots=12)
    neighbours = [await submit(watcher, name="act") for _ in range(11)]
    for task in neighbours:
        await stage.arrival(task)
    pill = await submit(watcher, name="poison")
    assert await terminal(watcher, pill) == "FAILED"
    for task in neighbours:
        found = await row(watcher, task)
        assert found["state"] != "FAILED", f"condemned with the pill: {found['failure_reason']}"


async def test_a_supervisor_that_is_stopped_while_its_children_still_start_ends_well(
    crew: Crew, watcher: AsyncConnection
) -> None:
    supervisor = crew.start("supervise", "2")

    async def started() -> bool:
        return len(psutil.Process(supervisor.pid).children()) == 2

    await eventually(started)
    supervisor.send(signal.SIGTERM)
    assert await supervisor.ended() == 0
    assert await value(watcher, "SELECT count(*) FROM fleet.lease WHERE state <> 'RELEASED'") == 0
