"""One database for all runs that are judged, emptied before each: a new one takes longer than a whole run."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from fleet.config import Settings
from fleet.postgres.database import AsyncConnection, Database
from fleet.postgres.scratch import new_database
from fleet.postgres.tables import metadata


@pytest.fixture(scope="session")
def judged_url(server_url: str, template: str) -> Iterator[str]:
    with new_database(server_url, template) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            name = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        yield url


@pytest.fixture
def database_url(judged_url: str) -> str:
    """The database, with the schema and nothing in it, and no journal."""
    with psycopg.connect(judged_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS fleet_journal CASCADE")
        for table in metadata.sorted_tables:  # by DELETE: of so few rows it takes a tenth of what TRUNCATE does
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier("fleet", table.name)))
    return judged_url


@pytest.fixture
def settings() -> Settings:
    """Time-outs that a slow machine does not meet: nothing here waits for one."""
    return Settings(ttl=timedelta(seconds=60))


@pytest.fixture
async def pair(database: Database) -> AsyncIterator[tuple[AsyncConnection, AsyncConnection]]:
    async with await database.connect("one") as one, await database.connect("two") as two:
        yield one, two
