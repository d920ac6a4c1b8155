"""Somebody else takes every connection that the server allows: a clear refusal, and all goes on when there is room."""

from contextlib import AsyncExitStack
from datetime import timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

from fleet import Fleet, Settings
from fleet.errors import DatabaseUnreachable
from fleet.postgres.database import AsyncConnection
from tests.conformance.cluster import Cluster
from tests.conformance.programs import binaries
from tests.conformance.room import Room
from tests.faults.infrastructure.steps import (
    LEASES,
    alive,
    all_renewed,
    create_database,
    migrated,
    nothing_lost,
    submitting,
)  # fmt: skip
from tests.processes.crew import Crew, Sink, until, value

MOST, RESERVED = (
    30,
    5,
)  # what the server allows, and how many of these are for superusers: the test's own session is one
FOR_ALL = MOST - RESERVED - 1
SETTINGS = Settings(ttl=timedelta(seconds=2))
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'plain' AND application_name LIKE 'fleet %'"


@pytest.fixture
def database_url(lent: Room) -> str:
    settings = {"max_connections": str(MOST), "superuser_reserved_connections": str(RESERVED), "shared_buffers": "32MB"}
    cluster = Cluster(lent, binaries("18"), settings, name="narrow").start()
    create_database(cluster.url, "fleet")
    url = migrated(cluster.url_of("fleet"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'")
        connection.execute("GRANT USAGE ON SCHEMA fleet TO plain")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA fleet TO plain")
        connection.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA fleet TO plain")
        connection.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fleet TO plain")
    return url


@pytest.fixture
def plain_url(database_url: str) -> str:
    """The same database for a role without privileges: none of the reserved connections are for it."""
    parts = urlsplit(database_url)
    return parts._replace(netloc=f"plain:plain@{parts.hostname}:{parts.port}").geturl()


async def take_every_connection(taken: AsyncExitStack, watcher: AsyncConnection, url: str) -> None:
    """Take what is free, end the sessions of the fleet, and take what they had, until nobody else has any."""
    count = 0
    while count < FOR_ALL:
        try:
            await taken.enter_async_context(await AsyncConnection.connect(url, autocommit=True))
            count += 1
        except psycopg.OperationalError as error:
            if "connection slots" not in str(error) and "too many clients" not in str(error):
                raise
            await watcher.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE usename = 'plain' AND application_name LIKE 'fleet %'"
            )


@pytest.mark.fault("Database", "connection slots exhausted")
async def test_the_refusal_says_why_and_everything_goes_on_when_there_is_room(
    crew: Crew, plain_url: str, watcher: AsyncConnection, sink: Sink
) -> None:
    crew._url = plain_url
    workers = await crew.workers(2, slots=8)
    leases = await value(watcher, LEASES)
    async with Fleet(plain_url, settings=SETTINGS) as app, submitting(app, milliseconds=20) as submitted:
        await submitted.more(50)
        async with AsyncExitStack() as taken:
            await take_every_connection(taken, watcher, plain_url)
            refused = await until_refused(plain_url)
            assert "connection slots" in refused or "too many clients" in refused
            # Whoever holds a lease cannot renew it, for longer than it lasts.
            await until(watcher, "SELECT max(expires_at) < clock_timestamp() FROM fleet.lease WHERE state = 'LIVE'")
            assert await value(watcher, SESSIONS) == 0
        await all_renewed(watcher, 2)
        await submitted.more(50)
    await nothing_lost(watcher, sink, submitted)
    assert await value(watcher, LEASES) == leases
    assert alive(workers)


async def until_refused(url: str) -> str:
    """Submit, from plain code and from a loop, and return what both are told."""
    app = Fleet(url, settings=SETTINGS)

    @app.task
    async def refused() -> None: ...

    try:
        with pytest.raises(DatabaseUnreachable) as told:
            await refused.submit()
        with pytest.raises(DatabaseUnreachable) as told_too:
            refused.submit_sync()
    finally:
        await app.close()
    assert str(told.value).partition("FATAL")[2] == str(told_too.value).partition("FATAL")[2] != ""
    return str(told.value)
