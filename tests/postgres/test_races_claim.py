"""Claims against everything that moves tasks, and operators against workers, in lock-step: see stage.py."""

import asyncio
from collections.abc import Awaitable
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.postgres import dead_letter, expire, queue
from fleet.postgres.database import AsyncConnection
from fleet.task import Released, State, Succeeded, Verdict
from tests.postgres.stage import REPEATS, Stage, as_task, settling, tasks_of
from tests.postgres.steps import (
    end_lease,
    make_due,
    reap_lease,
    settle_one,
    waits,
)
from tests.support import claim_some, renew, submit

pytestmark = pytest.mark.parametrize("time", range(REPEATS))


async def test_a_task_that_is_being_released_is_claimed_only_once_it_is_free(stage: Stage, time: int) -> None:
    task = await stage.take()

    waited, (verdict, _), claimed = await stage.while_open(
        settling(task, Released("later")), stage.claiming(stage.rival)
    )

    assert (waited, verdict, tasks_of(claimed)) == (False, Verdict.SETTLED, [])
    assert tasks_of(await stage.claiming(stage.rival)(stage.second)) == [(task.id, 2)]


async def test_a_release_sent_again_during_the_next_claim_changes_nothing(stage: Stage, time: int) -> None:
    task = await stage.take()
    release = settling(task, Released("later"))
    await release(stage.watch)

    waited, claimed, (verdict, _) = await stage.while_open(stage.claiming(stage.rival), release)

    assert (waited, tasks_of(claimed), verdict) == (False, [(task.id, 2)], Verdict.ALREADY)
    assert await stage.state(task.id) == "RUNNING"


@pytest.mark.fault("Submit", "a cancel against a claim")
async def test_a_cancel_waits_for_the_claim_and_asks_its_attempt(stage: Stage, time: int) -> None:
    task_id = await submit(stage.watch, queue=stage.queue)

    waited, _, answer = await stage.while_open(stage.claiming(stage.lease), stage.cancelling(task_id))

    assert (waited, answer) == (True, {task_id: (State.RUNNING, True)})
    assert await renew(stage.watch, stage.lease) == [("LIVE", task_id, 1)]


@pytest.mark.fault("Submit", "a cancel against a claim")
async def test_a_claim_passes_over_a_task_that_is_being_cancelled(stage: Stage, time: int) -> None:
    task_id = await submit(stage.watch, queue=stage.queue)

    waited, _, claimed = await stage.while_open(stage.cancelling(task_id), stage.claiming(stage.lease))

    assert (waited, tasks_of(claimed)) == (False, [])
    assert await stage.state(task_id) == "CANCELLED"


async def test_a_cancel_waits_for_a_release_and_then_takes_the_waiting_task(stage: Stage, time: int) -> None:
    task = await stage.take()

    waited, _, answer = await stage.while_open(settling(task, Released("later")), stage.cancelling(task.id))

    assert (waited, answer) == (True, {task.id: (State.CANCELLED, True)})


@pytest.mark.fault("Submit", "a cancel against a completion")
async def test_a_cancel_that_waits_for_the_end_comes_too_late(stage: Stage, time: int) -> None:
    task = await stage.take()

    waited, _, answer = await stage.while_open(settling(task, Succeeded("1")), stage.cancelling(task.id))

    assert (waited, answer) == (True, {task.id: (State.SUCCEEDED, False)})


@pytest.mark.fault("Submit", "a cancel against a completion")
async def test_a_release_during_a_request_to_cancel_is_busy_and_then_cancelled(stage: Stage, time: int) -> None:
    task = await stage.take()
    release = settling(task, Released("later"))

    waited, _, (verdict, _) = await stage.while_open(stage.cancelling(task.id), release)

    assert (waited, verdict) == (False, Verdict.BUSY)
    assert await release(stage.second) == (Verdict.SETTLED, State.CANCELLED)


@pytest.mark.fault("Submit", "a cancel against a reap")
@pytest.mark.fault("Reaper", "a reap against a cancel")
async def test_a_cancel_waits_for_a_sweep_and_takes_what_that_put_back(stage: Stage, time: int) -> None:
    task = await stage.take()
    await end_lease(stage.watch, stage.lease)

    waited, _, answer = await stage.while_open(stage.sweeping(), stage.cancelling(task.id))

    assert (waited, answer) == (True, {task.id: (State.CANCELLED, True)})


async def test_a_task_that_is_being_expired_is_not_claimed_and_the_other_way_round(stage: Stage, time: int) -> None:
    task_id = await submit(stage.watch, queue=stage.queue)

    def expiring(connection: AsyncConnection) -> Awaitable[int]:
        return expire.expire(connection, uuid7())

    waited, claimed, expired = await stage.while_open(stage.claiming(stage.lease), expiring)
    assert (waited, tasks_of(claimed), expired) == (False, [(task_id, 1)], 0)

    late = await submit(stage.watch, queue=stage.queue)
    await stage.watch.execute("UPDATE fleet.task SET expires_at = clock_timestamp() WHERE id = %s", (late,))
    waited, expired, claimed = await stage.while_open(expiring, stage.claiming(stage.lease))
    assert (waited, expired, tasks_of(claimed)) == (False, 1, [])


async def test_a_dead_letter_is_requeued_by_one_of_two_operators(stage: Stage, time: int) -> None:
    task = await stage.take(idempotent=False)
    await reap_lease(stage.watch, stage.lease)

    def requeueing(connection: AsyncConnection) -> Awaitable[list[UUID]]:
        return dead_letter.requeue(connection, {task.id: 1}, "operator")

    assert await stage.while_open(requeueing, requeueing) == (True, [task.id], [])


async def test_a_pause_holds_from_its_commit_on(stage: Stage, time: int) -> None:
    first_id = await submit(stage.watch, queue=stage.queue)

    waited, _, claimed = await stage.while_open(
        lambda first: queue.pause(first, stage.queue, "operator"), stage.claiming(stage.lease)
    )
    await submit(stage.watch, queue=stage.queue)

    assert (waited, tasks_of(claimed)) == (False, [(first_id, 1)])
    assert tasks_of(await stage.claiming(stage.lease)(stage.second)) == []


async def test_two_claims_at_once_share_no_task(stage: Stage, time: int) -> None:
    ids = [await submit(stage.watch, queue=stage.queue) for _ in range(15)]

    waited, first, second = await stage.while_open(stage.claiming(stage.lease), stage.claiming(stage.rival))

    assert (waited, len(tasks_of(first)), len(tasks_of(second))) == (False, 10, 5)
    assert sorted(tasks_of(first) + tasks_of(second)) == sorted((task_id, 1) for task_id in ids)


@pytest.mark.parametrize("change", ["taken", "cancelled", "delayed", "expired", "released"])
async def test_a_claim_judges_the_newest_version_of_what_its_snapshot_shows(
    stage: Stage, time: int, change: str
) -> None:
    """Its snapshot is taken; then it waits for its lease, while the task moves on; then it locks the task."""
    changed, steady = [await submit(stage.watch, queue=stage.queue) for _ in range(2)]

    async with stage.first.transaction():
        await stage.first.execute("SELECT FROM fleet.lease WHERE id = %s FOR UPDATE", (stage.lease.id,))
        running = asyncio.create_task(as_task(stage.claiming(stage.lease)(stage.second)))
        assert await waits(stage.watch, running, stage.second)
        match change:
            case "cancelled":
                await stage.cancelling(changed)(stage.watch)
            case "delayed":
                await stage.watch.execute(
                    "UPDATE fleet.task SET run_at = run_at + interval '1 hour' WHERE id = %s", (changed,)
                )
            case "expired":
                await stage.watch.execute(
                    "UPDATE fleet.task SET expires_at = clock_timestamp() - interval '1 hour' WHERE id = %s", (changed,)
                )
            case "taken" | "released":
                (task,) = await claim_some(stage.watch, stage.rival, 1, queue=stage.queue)
                if change == "released":
                    await settle_one(stage.watch, task, Released("later"))

    got = dict(tasks_of(await running))
    assert got.pop(steady) == 1
    assert got == ({changed: 2} if change == "released" else {})
    await make_due(stage.watch, steady)
