"""A submission whose connection is lost before the answer is neither done nor failed: it is unknown, and says so."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fleet import Fleet
from fleet.errors import DatabaseBusy, DatabaseUnreachable, OutcomeUnknown
from fleet.postgres.database import AsyncConnection
from tests.support import eventually, execute
from tests.worker.steps import terminate

Submit = Callable[[], Awaitable[object]]


def declared(app: Fleet, how: str) -> Submit:
    @app.task
    async def work() -> None: ...

    async def in_a_thread() -> object:
        return await asyncio.to_thread(once.submit_sync)

    once = work.options(idempotency_key="order 7")
    return {"submit": once.submit, "submit_sync": in_a_thread, "submit_many": lambda: app.submit_many(work, [{}])}[how]


async def waiting(connection: AsyncConnection) -> list[tuple[object, ...]]:
    return await execute(
        connection,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )


@pytest.mark.fault("Submit", "a retry after a lost response")
@pytest.mark.parametrize("how", ["submit", "submit_sync", "submit_many"])
async def test_a_lost_connection_leaves_the_outcome_unknown_and_the_same_key_settles_it(
    app: Fleet, connection: AsyncConnection, other: AsyncConnection, how: str
) -> None:
    submit = declared(app, how)
    async with other.transaction():
        await other.execute("LOCK TABLE fleet.task IN ACCESS EXCLUSIVE MODE")
        sending = asyncio.ensure_future(submit())
        await eventually(lambda: waiting(connection))
        assert await terminate(connection, "client") == 1
        with pytest.raises(OutcomeUnknown, match=r"not known.*same idempotency key"):
            await sending
    await submit()
    assert await execute(connection, "SELECT count(*) FROM fleet.task") == [(1,)]


async def test_without_any_connection_nothing_was_sent(app: Fleet) -> None:
    nowhere = Fleet("postgresql://nobody@127.0.0.1:1/nothing", settings=app.settings)
    submit = declared(nowhere, "submit")
    async with nowhere:
        with pytest.raises(DatabaseUnreachable) as refused:
            await submit()
    assert not isinstance(refused.value, OutcomeUnknown)


async def test_a_lost_connection_leaves_a_cancellation_unknown(
    app: Fleet, connection: AsyncConnection, other: AsyncConnection
) -> None:
    ref = await app.task(name="work")(nothing).submit()
    async with other.transaction():
        await other.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (ref.id,))
        sending = asyncio.ensure_future(ref.cancel())
        await eventually(lambda: waiting(connection))
        assert await terminate(connection, "client") == 1
        with pytest.raises(OutcomeUnknown):
            await sending


@pytest.mark.parametrize("how", ["submit", "submit_sync", "submit_many"])
async def test_a_lock_that_is_held_too_long_is_told_as_such_and_nothing_was_written(
    app: Fleet, connection: AsyncConnection, other: AsyncConnection, how: str
) -> None:
    submit = declared(app, how)
    async with other.transaction():
        await other.execute("LOCK TABLE fleet.task IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseBusy, match=r"lock timeout.*Nothing was written: try again"):
            await submit()
    assert await execute(connection, "SELECT count(*) FROM fleet.task") == [(0,)]


async def nothing() -> None: ...
