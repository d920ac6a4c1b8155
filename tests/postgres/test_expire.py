"""Tasks that nobody started in time."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import expire
from fleet.postgres.database import AsyncConnection
from fleet.task import Released
from tests.postgres.steps import MINUTE, at_the_same_moment, scalar, settle_one, take, whole
from tests.support import counters, history, new_lease, row, submit


async def let_expire(connection: AsyncConnection, *tasks: UUID) -> None:
    await connection.execute("UPDATE fleet.task SET expires_at = clock_timestamp() WHERE id = ANY (%s)", (list(tasks),))


async def test_a_task_that_was_not_started_in_time_fails_and_says_so(connection: AsyncConnection) -> None:
    task_id = await submit(connection)
    await let_expire(connection, task_id)
    moment = await scalar(connection, "SELECT expires_at::text FROM fleet.task")

    assert await expire.expire(connection, uuid7()) == 1

    after = await row(connection, task_id)
    assert (after["state"], after["failure_code"], after["attempt"]) == ("FAILED", "expired", 0)
    assert after["failure_reason"] == f"not started before {moment}"
    assert after["finished_at"] >= after["expires_at"]
    assert after["resolved_at"] is None
    assert await history(connection, task_id) == []


@pytest.mark.parametrize(
    ("moment", "count"), [("", 1), ("+ interval '1 microsecond'", 0), ("- interval '1 microsecond'", 1)]
)
async def test_a_task_expires_at_its_very_moment(connection: AsyncConnection, moment: str, count: int) -> None:
    await submit(connection)
    rows = await at_the_same_moment(
        connection,
        f"UPDATE fleet.task SET expires_at = statement_timestamp() {moment}",
        expire.EXPIRE,
        me=uuid7(),
        batch=10,
    )
    assert rows == [(count,)]


async def test_only_waiting_tasks_with_a_term_expire(connection: AsyncConnection, lease: Lease) -> None:
    running = (await take(connection, lease)).id
    ended = await take(connection, lease)
    await settle_one(connection, ended, Released("r"))
    await connection.execute("UPDATE fleet.task SET state = 'CANCELLED' WHERE id = %s", (ended.id,))
    endless, later = await submit(connection), await submit(connection)
    await let_expire(connection, running, ended.id)
    await connection.execute("UPDATE fleet.task SET expires_at = now() + interval '1 hour' WHERE id = %s", (later,))
    ids = [running, ended.id, endless, later]
    before = [await whole(connection, task_id) for task_id in ids]

    assert await expire.expire(connection, uuid7()) == 0

    assert [await whole(connection, task_id) for task_id in ids] == before


async def test_delayed_and_released_tasks_expire_too(connection: AsyncConnection, lease: Lease) -> None:
    delayed = await submit(connection, delay=timedelta(hours=1))
    released = await take(connection, lease)
    await settle_one(connection, released, Released("r"))
    await let_expire(connection, delayed, released.id)

    assert await expire.expire(connection, uuid7()) == 2
    assert (await row(connection, released.id))["attempt"] == 1


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5])
async def test_batch_after_batch_until_none_is_left(
    connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(expire, "EXPIRE_BATCH", 2)
    await let_expire(connection, *[await submit(connection) for _ in range(number)])
    assert await expire.expire(connection, uuid7()) == number
    assert await expire.expire(connection, uuid7()) == 0


async def test_a_locked_row_is_left_for_the_next_time(
    connection: AsyncConnection, other: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expire, "EXPIRE_BATCH", 2)
    ids = [await submit(connection) for _ in range(5)]
    await let_expire(connection, *ids)
    async with other.transaction():
        await other.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (ids[0],))
        assert await expire.expire(connection, uuid7()) == 4
    assert await expire.expire(connection, uuid7()) == 1


async def test_the_expired_are_counted_once_by_queue(connection: AsyncConnection) -> None:
    await new_lease(connection, ttl=MINUTE)
    expected: dict[tuple[Any, ...], int] = {("dead_letters", "a", "expired"): 4, ("dead_letters", "b", "expired"): 2}
    me = uuid7()
    for _ in range(2):
        await let_expire(connection, *[await submit(connection, queue=queue) for queue in "aab"])
        await expire.expire(connection, me)
        await expire.expire(connection, me)
    assert await counters(connection) == expected
    assert await scalar(connection, "SELECT array_agg(DISTINCT writer) FROM fleet.counter") == [me]
