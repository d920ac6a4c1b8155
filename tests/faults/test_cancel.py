"""Cancels against claims, completions and reaps by real workers: each answer must turn out to have been true."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest

from fleet.postgres import cancel
from fleet.postgres.database import AsyncConnection, Database
from fleet.task import State
from fleet.testing.faultpoints import FaultPoints
from tests.faults.steps import OPEN, STATE, submit_both
from tests.processes.crew import Crew, Sink, terminal, until
from tests.processes.load import NAMES
from tests.processes.oracle import Story, judge, judge_all, stories
from tests.processes.stage import Stage
from tests.support import blocked, eventually, history, pid_of, row, submit

Answer = tuple[State, bool]  # where the task is now, and whether the cancel changed anything
BEFORE_START, REQUESTED = (State.CANCELLED, True), (State.RUNNING, True)
TOO_LATE = (State.SUCCEEDED, False)
EACH_AT_LEAST = 10


async def cancel_each(connection: AsyncConnection, tasks: Sequence[UUID]) -> dict[UUID, Answer]:
    return {task: (await cancel.cancel(connection, [task], "test"))[task] for task in tasks}


def check_truth(story: Story, answer: Answer) -> None:
    """Fail unless what the caller was told is what became of the task."""
    state, starts = story.task["state"], story.starts
    match answer:
        case (State.CANCELLED, True):
            assert (state, starts) == ("CANCELLED", []), story
        case (State.RUNNING, True):
            assert state in ("CANCELLED", "SUCCEEDED"), story
            assert len(starts) <= 1, story
        case (told, False):
            assert (state, len(starts)) == (told, 1), story
        case _:
            pytest.fail(f"no answer should be {answer}: {story}")


@pytest.mark.fault("Submit", "a cancel against a claim")
@pytest.mark.fault("Submit", "a cancel against a completion")
async def test_cancels_in_the_middle_of_claims_and_completions_each_tell_what_became_of_the_task(
    crew: Crew, database: Database, watcher: AsyncConnection, sink: Sink
) -> None:
    await crew.workers(2, slots=4)
    answers: dict[UUID, Answer] = {}
    kinds: Counter[Answer] = Counter()
    async with await database.connect("one") as one, await database.connect("two") as two:

        async def every_kind_has_happened() -> bool:
            async with watcher.transaction():  # they appear at once, and more than there are slots
                tasks = [await submit(watcher, name=NAMES[i % 2], args='{"milliseconds": 5}') for i in range(40)]
            halves = random.sample(tasks[:20], 20), random.sample(tasks[20:], 20)
            for told in await asyncio.gather(cancel_each(one, halves[0]), cancel_each(two, halves[1])):
                answers.update(told)
                kinds.update(told.values())
            return all(kinds[kind] >= EACH_AT_LEAST for kind in (BEFORE_START, REQUESTED, TOO_LATE))

        await eventually(every_kind_has_happened, seconds=90)
    await until(watcher, OPEN, is_=lambda count: count == 0)
    told = {story.task["id"]: story for story in await judge_all(watcher, sink)}
    for task, answer in answers.items():
        check_truth(told[task], answer)


@pytest.mark.fault("Submit", "a cancel against a completion")
async def test_a_handler_that_returns_while_it_is_being_cancelled_keeps_its_result_and_the_cancel_says_what_it_met(
    crew: Crew, stage: Stage, database: Database, watcher: AsyncConnection, locker: AsyncConnection, sink: Sink
) -> None:
    await crew.worker(slots=1)
    task = await submit(watcher, name="act")
    actor = await stage.arrival(task)
    await locker.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (task,))
    async with await database.connect("one") as one:
        cancelling = asyncio.ensure_future(cancel_each(one, [task]))
        await blocked(watcher, pid_of(one))
        actor.tell('return "kept"')
        await actor.gone()
        await locker.commit()
        answer = (await cancelling)[task]
    assert answer in (REQUESTED, TOO_LATE)
    assert await terminal(watcher, task) == "SUCCEEDED"
    assert (await row(watcher, task))["result"] == "kept"
    await judge_all(watcher, sink)


@pytest.mark.fault("Submit", "a cancel against a reap")
async def test_what_was_to_be_cancelled_when_its_worker_died_is_cancelled_or_unknown_and_never_runs_again(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    victim = await crew.worker(slots=2)
    lease = await crew.lease_of(victim)
    repeatable, once = await submit_both(watcher)
    for task in (repeatable, once):
        await stage.arrival(task)
    victim.stop()  # it will not hear of the cancel
    assert set((await cancel.cancel(watcher, [repeatable, once], "test")).values()) == {REQUESTED}
    victim.kill()
    await crew.worker(slots=2)
    assert await terminal(watcher, repeatable) == "CANCELLED"
    assert await terminal(watcher, once) == "FAILED"
    await until(watcher, STATE, lease, is_=lambda state: state == "REAPED")
    assert (await row(watcher, once))["failure_code"] == "lease_expired"  # what it did is unknown, and stays so
    assert await history(watcher, once) == [(1, False, "lost")]
    assert [sink.attempts("start", task) for task in (repeatable, once)] == [[1], [1]]
    for story in await stories(watcher, sink):  # the counters leave out what a reaper cancels
        judge(story)


@pytest.mark.fault("Submit", "a cancel against a reap")
async def test_cancels_between_the_mark_and_the_sweep_and_after_it_each_tell_what_became_of_the_task(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    victim = await crew.worker(slots=16)
    repeatable, once = [[await submit(watcher, name=name) for _ in range(8)] for name in ("act", "act_once")]
    for task in repeatable + once:
        await stage.arrival(task)
    # The survivor serves another queue: what it puts back is not started by anybody before it is cancelled.
    with FaultPoints("mark.after") as points:
        await crew.worker(queues=["other"], faultpoints=points.environment["FLEET_FAULTPOINTS"])
        victim.kill()
        marked = await points.hit("mark.after")
        early = await cancel_each(watcher, repeatable[:4] + once[:4])
        marked.go()
        points.release_all()
        await until(watcher, "SELECT count(*) FROM fleet.task WHERE state = 'RUNNING'", is_=lambda count: count == 0)
        late = await cancel_each(watcher, repeatable[4:] + once[4:])
    assert set(early.values()) == {REQUESTED}
    assert {late[task] for task in repeatable[4:]} == {BEFORE_START}
    assert {late[task] for task in once[4:]} == {(State.FAILED, False)}
    for task in repeatable:
        assert (await row(watcher, task))["state"] == "CANCELLED"
    for task in once:
        assert (await row(watcher, task))["failure_code"] == "lease_expired"
    assert all(starts == [1] for starts in sink.by_task("start").values())
    for story in await stories(watcher, sink):  # the counters leave out what a reaper cancels
        judge(story)
