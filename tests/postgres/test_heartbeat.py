"""A lease from its grant to its end, as its holder sees it."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease, LeaseState
from fleet.postgres import cancel, heartbeat, reap
from fleet.postgres.database import AsyncConnection, Connection, Database
from fleet.task import Succeeded
from tests.postgres.steps import MINUTE, end_lease, settle_one, take
from tests.support import execute, expire_lease, new_lease

IDENTITY = heartbeat.Identity("worker-1", "host-1", 4711, "1.2.3", ("b", "a"), 8)


@pytest.fixture
def holder(database: Database) -> Iterator[Connection]:
    """The synchronous connection of a heartbeat thread."""
    with database.connect_sync("heartbeat") as connection:
        yield connection


async def row_of(connection: AsyncConnection, lease: Lease) -> dict[str, Any]:
    cursor = await connection.execute(
        "SELECT *, xmin::text, clock_timestamp() AS now FROM fleet.lease WHERE id = %s", (lease.id,)
    )
    values = await cursor.fetchone()
    assert values is not None
    assert cursor.description is not None
    return dict(zip([column.name for column in cursor.description], values, strict=True))


async def test_a_new_lease_is_live_for_one_ttl_and_its_queues_exist(
    connection: AsyncConnection, holder: Connection
) -> None:
    lease = Lease(uuid7(), "worker-1", timedelta(seconds=90))
    await execute(connection, "INSERT INTO fleet.queue (name, paused, generation) VALUES ('a', true, 7)")

    heartbeat.register(holder, lease, IDENTITY)

    after = await row_of(connection, lease)
    assert (after["worker"], after["host"], after["pid"], after["version"]) == ("worker-1", "host-1", 4711, "1.2.3")
    assert (after["queues"], after["slots"], after["ttl"]) == (["b", "a"], 8, lease.ttl)
    assert (after["state"], after["idle"], after["cleared_at"]) == ("LIVE", False, None)
    assert after["granted_at"] == after["renewed_at"] == after["expires_at"] - lease.ttl <= after["now"]
    assert await execute(connection, "SELECT name, paused, generation FROM fleet.queue ORDER BY name") == [
        ("a", True, 7), ("b", False, 0),
    ]  # fmt: skip


async def test_a_renewal_moves_the_expiry_to_one_ttl_from_now(
    connection: AsyncConnection, holder: Connection, lease: Lease
) -> None:
    before = await row_of(connection, lease)

    assert heartbeat.renew(holder, lease) == heartbeat.Renewed(LeaseState.LIVE, frozenset())

    after = await row_of(connection, lease)
    assert before["now"] < after["renewed_at"] < after["now"]
    assert timedelta(0) <= after["expires_at"] - after["renewed_at"] - MINUTE < timedelta(seconds=1)
    assert after["granted_at"] == before["granted_at"]


async def test_an_expired_lease_that_nobody_marked_is_renewed(
    connection: AsyncConnection, holder: Connection, lease: Lease
) -> None:
    await expire_lease(connection, lease)
    assert heartbeat.renew(holder, lease) is not None
    after = await row_of(connection, lease)
    assert after["expires_at"] > after["now"]


async def test_a_renewal_leaves_other_leases_alone(
    connection: AsyncConnection, holder: Connection, lease: Lease, rival: Lease
) -> None:
    before = await row_of(connection, rival)
    heartbeat.renew(holder, lease)
    assert await row_of(connection, rival) | {"now": None} == before | {"now": None}


async def test_a_draining_lease_is_renewed_until_it_is_closed(
    connection: AsyncConnection, holder: Connection, lease: Lease
) -> None:
    assert await heartbeat.drain(connection, lease.id)
    assert heartbeat.renew(holder, lease) == heartbeat.Renewed(LeaseState.DRAINING, frozenset())
    assert await heartbeat.close(connection, lease)
    assert heartbeat.renew(holder, lease) is None


@pytest.mark.parametrize("known", [True, False])
async def test_a_lease_that_is_over_is_not_renewed_and_stays_as_it_is(
    connection: AsyncConnection, holder: Connection, lease: Lease, known: bool
) -> None:
    if not known:
        assert heartbeat.renew(holder, Lease(uuid7(), "nobody", MINUTE)) is None
        return
    await end_lease(connection, lease)
    before = await row_of(connection, lease)
    assert heartbeat.renew(holder, lease) is None
    assert await row_of(connection, lease) | {"now": None} == before | {"now": None}


async def test_a_renewal_brings_the_requests_to_cancel_of_its_own_lease_each_time(
    connection: AsyncConnection, holder: Connection, lease: Lease, rival: Lease
) -> None:
    one, two, its = await take(connection, lease), await take(connection, lease), await take(connection, rival)
    await cancel.cancel(connection, [one.id, two.id, its.id], "ann")

    for _ in range(2):
        assert heartbeat.renew(holder, lease) == heartbeat.Renewed(
            LeaseState.LIVE, frozenset({(one.id, 1), (two.id, 1)})
        )

    await settle_one(connection, one, Succeeded("1"))
    await cancel.forget(connection)
    assert heartbeat.renew(holder, lease) == heartbeat.Renewed(LeaseState.LIVE, frozenset({(two.id, 1)}))
    assert heartbeat.renew(holder, rival) == heartbeat.Renewed(LeaseState.LIVE, frozenset({(its.id, 1)}))


async def test_a_lock_on_the_requests_to_cancel_costs_nobody_a_lease(
    connection: AsyncConnection, holder: Connection, lease: Lease
) -> None:
    await expire_lease(connection, lease)
    async with connection.transaction():
        await connection.execute("LOCK TABLE fleet.cancel_request IN ACCESS EXCLUSIVE MODE")
        assert heartbeat.renew(holder, lease) == heartbeat.Renewed(LeaseState.LIVE, frozenset())
    assert await reap.mark(connection, uuid7(), [lease.id]) == []


async def test_a_lease_drains_once_and_closes_once_and_only_in_this_order(
    connection: AsyncConnection, lease: Lease
) -> None:
    assert not await heartbeat.close(connection, lease)
    assert await heartbeat.drain(connection, lease.id)
    assert not await heartbeat.drain(connection, lease.id)
    assert (await row_of(connection, lease))["state"] == "DRAINING"
    assert await heartbeat.close(connection, lease)
    assert not await heartbeat.close(connection, lease)
    assert not await heartbeat.drain(connection, lease.id)
    assert (await row_of(connection, lease))["state"] == "RELEASED"


async def test_a_lease_that_was_reaped_neither_drains_nor_closes(
    connection: AsyncConnection, lease: Lease, rival: Lease
) -> None:
    await end_lease(connection, lease)
    assert not await heartbeat.drain(connection, lease.id)
    assert not await heartbeat.close(connection, lease)

    await heartbeat.drain(connection, rival.id)
    await reap.end(connection, uuid7(), [rival.id])
    assert not await heartbeat.close(connection, rival)
    assert {(await row_of(connection, each))["state"] for each in (lease, rival)} == {"REAPED"}


async def test_a_draining_lease_is_not_woken_any_more(connection: AsyncConnection) -> None:
    lease = await new_lease(connection, ttl=MINUTE)
    await execute(connection, "UPDATE fleet.lease SET idle = true")
    await heartbeat.drain(connection, lease.id)
    assert (await row_of(connection, lease))["idle"] is False


async def test_nothing_that_a_heartbeat_changes_is_indexed(connection: AsyncConnection) -> None:
    indexed = await execute(
        connection,
        """
        SELECT DISTINCT attname::text
        FROM pg_index
        JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
        WHERE indrelid = 'fleet.lease'::regclass
        """,
    )
    assert indexed == [("id",)]
