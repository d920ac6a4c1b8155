"""What an operator does with tasks that have failed."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import cancel, dead_letter, expire
from fleet.postgres.database import AsyncConnection
from fleet.task import Cancelled, ClaimedTask, Outcome, Released, Succeeded
from tests.postgres.steps import error, reap_lease, scalar, settle_one, take, whole
from tests.support import claim_some, execute, row, submit

Judge = Callable[[AsyncConnection, Mapping[UUID, int], str], Awaitable[list[UUID]]]
JUDGES: list[Judge] = [dead_letter.requeue, dead_letter.discard]
both = pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.__name__)


async def failed(connection: AsyncConnection, lease: Lease, **changes: Any) -> ClaimedTask:
    task = await take(connection, lease, **changes)
    await settle_one(connection, task, error(None))
    return task


async def audited(connection: AsyncConnection) -> list[tuple[Any, ...]]:
    return await execute(connection, "SELECT actor, action, subject, detail FROM fleet.audit ORDER BY id")


async def test_a_requeued_task_is_due_now_with_fresh_budgets_and_goes_on_counting(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await failed(connection, lease)
    await connection.execute(
        "UPDATE fleet.task SET losses = 2, cancel_requested = true, expires_at = now(), run_at = now() - interval '1 day'"
    )
    begin = await scalar(connection, "SELECT clock_timestamp()")

    assert await dead_letter.requeue(connection, {task.id: 1}, "ann") == [task.id]

    after = await row(connection, task.id)
    assert (after["state"], after["attempt"], after["failures"], after["losses"]) == ("QUEUED", 1, 0, 0)
    assert (after["failure_code"], after["failure_reason"], after["finished_at"], after["expires_at"]) == (None,) * 4
    assert (after["cancel_requested"], after["lease_id"]) == (False, None)
    assert after["run_at"] >= begin
    assert await audited(connection) == [("ann", "requeue", str(task.id), "after attempt 1")]
    assert [(again.id, again.attempt) for again in await claim_some(connection, lease)] == [(task.id, 2)]


async def test_a_requeued_task_announces_itself(
    connection: AsyncConnection, other: AsyncConnection, lease: Lease
) -> None:
    tasks = [await failed(connection, lease) for _ in range(2)]
    await other.execute("LISTEN fleet")
    await dead_letter.requeue(connection, {task.id: 1 for task in tasks}, "ann")
    heard = [notification.payload async for notification in other.notifies(timeout=30, stop_after=1)]
    assert heard == ["default"]


async def test_a_discarded_task_stays_failed_and_is_no_dead_letter_any_more(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await failed(connection, lease)
    before = await row(connection, task.id)

    assert await dead_letter.discard(connection, {task.id: 1}, "ann") == [task.id]

    after = await row(connection, task.id)
    assert after["resolved_at"] is not None
    assert after | {"resolved_at": None} == before
    assert await audited(connection) == [("ann", "discard", str(task.id), "after attempt 1")]


@both
@pytest.mark.parametrize("seen", [0, 2])
async def test_only_the_failure_that_was_seen_is_judged(
    connection: AsyncConnection, lease: Lease, judge: Judge, seen: int
) -> None:
    task = await failed(connection, lease)
    before = await whole(connection, task.id)
    assert await judge(connection, {task.id: seen}, "ann") == []
    assert await whole(connection, task.id) == before
    assert await audited(connection) == []


@both
@pytest.mark.parametrize("first", JUDGES, ids=lambda judge: f"after_{judge.__name__}")
async def test_a_failure_is_judged_once(connection: AsyncConnection, lease: Lease, first: Judge, judge: Judge) -> None:
    task = await failed(connection, lease)
    assert await first(connection, {task.id: 1}, "ann") == [task.id]
    before = await whole(connection, task.id)
    assert await judge(connection, {task.id: 1}, "bob") == []
    assert await whole(connection, task.id) == before
    assert [entry[0] for entry in await audited(connection)] == ["ann"]


@both
@pytest.mark.parametrize("outcome", [Succeeded("1"), Cancelled("c"), Released("r"), None], ids=str)
async def test_what_has_not_failed_is_not_judged(
    connection: AsyncConnection, lease: Lease, judge: Judge, outcome: Outcome | None
) -> None:
    task = await take(connection, lease)
    if outcome is not None:
        await settle_one(connection, task, outcome)
    waiting = await submit(connection)
    before = await whole(connection, task.id)

    assert await judge(connection, {task.id: 1, waiting: 0, uuid7(): 1}, "ann") == []

    assert await whole(connection, task.id) == before
    assert (await row(connection, waiting))["state"] == "QUEUED"


@both
async def test_every_way_to_fail_can_be_judged_many_at_once(
    connection: AsyncConnection, lease: Lease, judge: Judge
) -> None:
    ended = await failed(connection, lease)
    lost = await take(connection, lease, idempotent=False)
    await reap_lease(connection, lease)
    late = await submit(connection)
    await connection.execute("UPDATE fleet.task SET expires_at = clock_timestamp() WHERE id = %s", (late,))
    await expire.expire(connection, uuid7())
    running = uuid7()

    judged = await judge(connection, {late: 0, ended.id: 1, running: 1, lost.id: 1}, "ann")

    assert sorted(judged) == sorted([ended.id, lost.id, late])
    assert [entry[2] for entry in await audited(connection)] == [str(task_id) for task_id in sorted(judged)]


async def test_a_requeued_task_that_had_expired_does_not_expire_again_and_can_be_cancelled(
    connection: AsyncConnection,
) -> None:
    late = await submit(connection)
    await connection.execute("UPDATE fleet.task SET expires_at = clock_timestamp() WHERE id = %s", (late,))
    await expire.expire(connection, uuid7())
    await dead_letter.requeue(connection, {late: 0}, "ann")

    assert await expire.expire(connection, uuid7()) == 0
    assert await cancel.cancel(connection, [late], "ann") == {late: ("CANCELLED", True)}


@both
async def test_any_number_is_judged_in_batches_that_are_told_one_by_one(
    connection: AsyncConnection, lease: Lease, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter, "BATCH", 2)
    tasks = [await failed(connection, lease) for _ in range(5)]
    seen = {task.id: task.attempt for task in tasks} | {tasks[0].id: 7}
    told: list[int] = []
    judged = await dead_letter.in_batches(connection, judge, seen, "ann", told.append)
    assert sorted(judged) == sorted(task.id for task in tasks[1:])
    assert told == [2, 2, 1]
    assert await dead_letter.in_batches(connection, judge, {}, "ann") == []
