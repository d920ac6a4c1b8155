"""Cancelling: at once before the start, a request afterwards, too late at the end."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import cancel
from fleet.postgres.database import AsyncConnection
from fleet.task import Cancelled, Outcome, Released, State, Succeeded
from tests.postgres.steps import NOW, error, reap_lease, scalar, settle_one, take, whole
from tests.support import claim_some, execute, renew, row, submit


async def requests(connection: AsyncConnection) -> list[tuple[Any, ...]]:
    return await execute(connection, "SELECT lease_id, task_id, attempt FROM fleet.cancel_request ORDER BY task_id")


async def audited(connection: AsyncConnection) -> list[tuple[Any, ...]]:
    return await execute(connection, "SELECT actor, action, subject FROM fleet.audit ORDER BY id")


@pytest.mark.parametrize("delay", [None, timedelta(hours=1)], ids=["due", "delayed"])
async def test_a_waiting_task_is_cancelled_at_once(
    connection: AsyncConnection, lease: Lease, delay: timedelta | None
) -> None:
    task_id = await submit(connection, delay=delay)

    assert await cancel.cancel(connection, [task_id], "ann") == {task_id: (State.CANCELLED, True)}

    after = await row(connection, task_id)
    assert (after["state"], after["lease_id"], after["attempt"]) == ("CANCELLED", None, 0)
    assert after["finished_at"] is not None
    assert await requests(connection) == []
    assert await audited(connection) == [("ann", "cancel", str(task_id))]
    assert await claim_some(connection, lease) == []


async def test_a_running_task_goes_on_and_its_worker_is_asked(connection: AsyncConnection, lease: Lease) -> None:
    task = await take(connection, lease)
    before = await row(connection, task.id)

    assert await cancel.cancel(connection, [task.id], "ann") == {task.id: (State.RUNNING, True)}

    assert await row(connection, task.id) == before | {"cancel_requested": True}
    assert await requests(connection) == [(lease.id, task.id, 1)]
    assert await renew(connection, lease) == [("LIVE", task.id, 1)]


async def test_asking_twice_is_one_request(connection: AsyncConnection, lease: Lease) -> None:
    task = await take(connection, lease)
    for _ in range(2):
        assert await cancel.cancel(connection, [task.id], "ann") == {task.id: (State.RUNNING, True)}
    assert await requests(connection) == [(lease.id, task.id, 1)]


@pytest.mark.parametrize("outcome", [Succeeded("1"), error(None), Cancelled("c")], ids=str)
async def test_a_task_that_has_ended_is_left_as_it_is(
    connection: AsyncConnection, lease: Lease, outcome: Outcome
) -> None:
    task = await take(connection, lease)
    _, state = await settle_one(connection, task, outcome)
    before = await whole(connection, task.id)

    assert await cancel.cancel(connection, [task.id], "ann") == {task.id: (state, False)}

    assert await whole(connection, task.id) == before
    assert await requests(connection) == []
    assert await audited(connection) == []


async def test_a_task_that_never_was_is_not_in_the_answer(connection: AsyncConnection) -> None:
    assert await cancel.cancel(connection, [uuid7()], "ann") == {}
    assert await cancel.cancel(connection, [], "ann") == {}


async def test_many_are_judged_each_by_its_own_state(connection: AsyncConnection, lease: Lease) -> None:
    done, running = await take(connection, lease), await take(connection, lease)
    await settle_one(connection, done, Succeeded("1"))
    waiting = await submit(connection)

    assert await cancel.cancel(connection, [waiting, done.id, uuid7(), running.id, waiting], "ann") == {
        waiting: (State.CANCELLED, True), done.id: (State.SUCCEEDED, False), running.id: (State.RUNNING, True),
    }  # fmt: skip
    assert {entry[2] for entry in await audited(connection)} == {str(waiting), str(running.id)}


@pytest.mark.parametrize("outcome", [Released("r"), error(NOW)], ids=str)
async def test_a_task_between_two_attempts_is_cancelled_at_once(
    connection: AsyncConnection, lease: Lease, outcome: Outcome
) -> None:
    task = await take(connection, lease)
    await settle_one(connection, task, outcome)
    assert await cancel.cancel(connection, [task.id], "ann") == {task.id: (State.CANCELLED, True)}


async def test_a_request_is_kept_until_its_attempt_is_over(
    connection: AsyncConnection, lease: Lease, rival: Lease
) -> None:
    ended, lost, running = [await take(connection, lease) for _ in range(3)]
    held = await take(connection, rival)
    ids: list[UUID] = [task.id for task in (ended, lost, running, held)]
    await cancel.cancel(connection, ids, "ann")
    await settle_one(connection, ended, Cancelled("c"))
    await cancel.forget(connection)
    assert {entry[1] for entry in await requests(connection)} == {lost.id, running.id, held.id}

    await reap_lease(connection, lease)
    await cancel.forget(connection)

    assert await requests(connection) == [(rival.id, held.id, 1)]
    assert await scalar(connection, "SELECT count(*) FROM fleet.task WHERE state = 'CANCELLED'") == 3
