"""Who is woken by what: a hint is sent only where somebody says that it sleeps."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import cancel, claim, heartbeat, listen, reap
from fleet.postgres.database import AsyncConnection
from fleet.postgres.submit import Submission, copy
from fleet.task import Released, Succeeded
from tests.postgres.steps import MINUTE, end_lease, lanes_of, scalar, settle_one, take
from tests.support import eventually, execute, expire_lease, new_lease, submit

END = "-- the end --"


@pytest.fixture
async def listener(other: AsyncConnection) -> AsyncConnection:
    await listen.listen(other)
    return other


async def heard(listener: AsyncConnection, sender: AsyncConnection) -> list[str]:
    """Everything that was announced until now."""
    await execute(sender, "SELECT pg_notify('fleet', :end::text)", end=END)
    payloads: list[str] = []
    async with aclosing(listener.notifies(timeout=30)) as notes:
        async for note in notes:
            if note.payload == END:
                return payloads
            payloads.append(note.payload)
    raise AssertionError(f"the end was not heard; heard {payloads}")


@pytest.fixture
async def sleeper(connection: AsyncConnection) -> Lease:
    lease = await new_lease(connection, ttl=MINUTE, queues=["default", "b"])
    await listen.set_idle(connection, lease.id, idle=True)
    return lease


async def test_nobody_is_woken_where_nobody_sleeps(
    connection: AsyncConnection, listener: AsyncConnection, lease: Lease
) -> None:
    await submit(connection)
    assert await heard(listener, connection) == []


async def test_a_sleeping_worker_is_told_the_queues_name_and_nothing_else(
    connection: AsyncConnection, listener: AsyncConnection, sleeper: Lease
) -> None:
    await submit(connection, args='{"secret": 1}')
    await submit(connection, queue="b")
    assert await heard(listener, connection) == ["default", "b"]


async def test_a_worker_of_another_queue_is_not_woken(
    connection: AsyncConnection, listener: AsyncConnection, sleeper: Lease
) -> None:
    await submit(connection, queue="c")
    assert await heard(listener, connection) == []


async def _wake_up(connection: AsyncConnection, lease: Lease) -> None:
    await listen.set_idle(connection, lease.id, idle=False)


async def _drain_idle(connection: AsyncConnection, lease: Lease) -> None:
    await heartbeat.drain(connection, lease.id)
    await listen.set_idle(connection, lease.id, idle=True)


async def _end_idle(connection: AsyncConnection, lease: Lease) -> None:
    await end_lease(connection, lease)
    await listen.set_idle(connection, lease.id, idle=True)


@pytest.mark.parametrize("leave", [_wake_up, _drain_idle, _end_idle, expire_lease])
async def test_only_a_live_worker_that_sleeps_counts(
    connection: AsyncConnection,
    listener: AsyncConnection,
    sleeper: Lease,
    leave: Callable[[AsyncConnection, Lease], Awaitable[None]],
) -> None:
    await leave(connection, sleeper)
    await submit(connection)
    assert await heard(listener, connection) == []

    another = await new_lease(connection, ttl=MINUTE)
    await listen.set_idle(connection, another.id, idle=True)
    await submit(connection)
    assert await heard(listener, connection) == ["default"]


@pytest.mark.parametrize(("delay", "announced"), [
    (timedelta(0), True), (timedelta(seconds=10), True), (timedelta(seconds=15), False), (timedelta(days=1), False),
], ids=str)  # fmt: skip
async def test_what_is_due_within_the_longest_poll_is_announced(
    connection: AsyncConnection, listener: AsyncConnection, sleeper: Lease, delay: timedelta, announced: bool
) -> None:
    await submit(connection, delay=delay)
    assert await heard(listener, connection) == (["default"] if announced else [])


@pytest.mark.parametrize(
    ("level", "announced"), [("READ COMMITTED", False), ("REPEATABLE READ", True), ("SERIALIZABLE", True)]
)
async def test_a_snapshot_that_may_not_see_the_sleeper_always_announces(
    connection: AsyncConnection, listener: AsyncConnection, level: str, announced: bool
) -> None:
    async with connection.transaction():
        await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        await submit(connection)
    assert await heard(listener, connection) == (["default"] if announced else [])


async def test_one_statement_announces_each_queue_once(
    connection: AsyncConnection, listener: AsyncConnection, sleeper: Lease
) -> None:
    await execute(
        connection,
        """
        INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses)
        SELECT gen_random_uuid(), queue, 'work', 1, 1 FROM unnest('{b,default,c}'::text[]) AS queue, generate_series(1, 100)
        """,
    )
    rows = [(uuid7(), "{}") for _ in range(100)]
    await copy(connection, Submission(id=uuid7(), queue="b", name="work", args="{}"), rows, lambda _: None)
    assert sorted(await heard(listener, connection)) == ["b", "b", "default"]


async def test_what_is_undone_is_not_announced(
    connection: AsyncConnection, listener: AsyncConnection, sleeper: Lease
) -> None:
    async with connection.transaction(force_rollback=True):
        await submit(connection)
    assert await heard(listener, connection) == []


async def test_a_release_is_announced_and_claims_ends_and_cancels_are_not(
    connection: AsyncConnection, listener: AsyncConnection, sleeper: Lease, lease: Lease
) -> None:
    task = await take(connection, lease)
    assert await heard(listener, connection) == ["default"]
    await settle_one(connection, task, Released("r"))
    assert await heard(listener, connection) == ["default"]
    again = await take(connection, lease)
    await heard(listener, connection)
    await settle_one(connection, again, Succeeded("null"))
    await cancel.cancel(connection, [task.id], "ann")
    assert await heard(listener, connection) == []


async def test_what_a_sweep_puts_back_is_announced(
    connection: AsyncConnection, listener: AsyncConnection, sleeper: Lease, lease: Lease
) -> None:
    """The reaper itself may have no room, and whoever sleeps would find it by polling alone."""
    await take(connection, lease)
    await heard(listener, connection)
    await end_lease(connection, lease)
    sweeper = reap.Sweeper(sleeper.id, timedelta(seconds=1), MINUTE)
    assert await reap.sweep(connection, sweeper, [lease.id]) == reap.Reclaimed(requeued=1)
    assert await heard(listener, connection) == ["default"]


async def test_the_longest_name_of_a_queue_can_be_announced(
    connection: AsyncConnection, listener: AsyncConnection
) -> None:
    name = "\N{GRINNING FACE}" * 200
    lease = await new_lease(connection, ttl=MINUTE, queues=[name])
    await listen.set_idle(connection, lease.id, idle=True)
    await submit(connection, queue=name)
    assert await heard(listener, connection) == [name]


async def test_saying_the_same_again_writes_nothing(connection: AsyncConnection, sleeper: Lease) -> None:
    before = await scalar(connection, "SELECT xmin::text FROM fleet.lease WHERE id = %s", sleeper.id)
    await listen.set_idle(connection, sleeper.id, idle=True)
    assert await scalar(connection, "SELECT xmin::text FROM fleet.lease WHERE id = %s", sleeper.id) == before


async def test_the_barrier_passes_when_everybody_who_could_not_see_the_sleeper_has_ended(
    connection: AsyncConnection, other: AsyncConnection, lease: Lease
) -> None:
    async with other.transaction():
        await submit(other)  # its trigger saw nobody asleep
        await listen.set_idle(connection, lease.id, idle=True)
        mark = await listen.barrier(connection)
        assert not await listen.passed(connection, mark)
        assert not (await claim.peek(connection, lanes_of("default"), ["work"])).ready

    await eventually(lambda: listen.passed(connection, mark))
    assert (await claim.peek(connection, lanes_of("default"), ["work"])).ready
