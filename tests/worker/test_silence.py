"""A network that takes everything and answers nothing: no call waits for ever."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from fleet import Fleet, Settings
from fleet.errors import DatabaseBusy, OutcomeUnknown
from fleet.postgres.database import AsyncConnection, Database, Statement, run
from fleet.postgres.submit import CHUNK
from fleet.testing.proxy import Proxy, Way

SILENCE_SECONDS = 15.0  # several times the patience of a call; without one they would wait for ever


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy: Proxy, settings: Settings) -> AsyncIterator[Fleet]:
    """An app whose database is behind the proxy, with a connection that is open already."""
    async with Fleet(proxy.url, settings=settings) as app:
        await app.task(name="warm")(work).submit()
        yield app


async def work() -> None: ...


async def test_a_submission_that_nobody_answers_is_given_up_as_unknown(proxy: Proxy, far: Fleet) -> None:
    """Whatever stands between acknowledges everything: no time-out of TCP would ever end the wait."""
    proxy.half_open()
    async with asyncio.timeout(SILENCE_SECONDS):
        with pytest.raises(OutcomeUnknown):
            await far.task(work).submit()


@pytest.mark.parametrize("way", ["to_server", "to_client"])
async def test_a_batch_that_nobody_answers_is_given_up_as_unknown(proxy: Proxy, far: Fleet, way: Way) -> None:
    proxy.freeze(way)
    async with asyncio.timeout(SILENCE_SECONDS):
        with pytest.raises(OutcomeUnknown):
            await far.submit_many(far.task(work), [{}] * 3)


async def test_a_batch_may_take_longer_than_a_statement(proxy: Proxy, far: Fleet, settings: Settings) -> None:
    """As long as something goes on: here the caller's own reading of what it submits."""

    def slow() -> Iterator[dict[str, Any]]:
        for _ in range(2 * CHUNK):
            yield {}
        time.sleep(3 * settings.statement_timeout.total_seconds())
        yield {}

    assert len(await far.submit_many(far.task(work), slow())) == 2 * CHUNK + 1


async def test_a_slow_link_is_no_silence(proxy: Proxy, settings: Settings) -> None:
    """An answer takes longer than any patience, and comes in all the while."""
    connection = await Database(proxy.url, settings).connect("claim")
    async with connection:
        proxy.throttle(20_000)
        began = time.monotonic()
        assert await run(connection, Statement("SELECT length(repeat('x', 80000)), repeat('x', 80000)"))
    assert connection.patience_seconds is not None
    assert time.monotonic() - began > 2 * connection.patience_seconds


async def test_a_batch_whose_transaction_the_server_gave_up_was_not_written(
    proxy: Proxy, settings: Settings, connection: AsyncConnection
) -> None:
    """The way is so long that the server calls the transaction idle: it says so by no operational error of the driver."""
    async with Fleet(proxy.url, settings=settings.changed(statement_timeout=timedelta(seconds=1.9))) as far:
        await far.task(name="warm")(work).submit()
        proxy.delay(0.8 * settings.ttl.total_seconds() / 2)
        with pytest.raises(DatabaseBusy, match="idle-in-transaction"):
            await far.submit_many(far.task(work), [{}] * 3)
    rows = await (await connection.execute("SELECT name FROM fleet.task")).fetchall()
    assert rows == [("warm",)]
