"""Sessions with the time-outs of a production fleet: nothing here waits for one, and a slow machine must not meet one."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from fleet.config import Settings
from fleet.lease import Lease
from fleet.postgres.database import AsyncConnection, Database
from fleet.postgres.scratch import new_database
from fleet.postgres.tables import metadata
from tests.postgres.stage import Stage
from tests.postgres.steps import MINUTE
from tests.support import new_lease


@pytest.fixture
def settings() -> Settings:
    return Settings(ttl=timedelta(seconds=60), slots=8)


@pytest.fixture(scope="session")
def one_url(server_url: str, template: str) -> Iterator[str]:
    """One database for all: dropping one forces a checkpoint, emptying it does not."""
    with new_database(server_url, template) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            name = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        yield url


@pytest.fixture
def database_url(one_url: str) -> str:
    """The database, empty."""
    return emptied(one_url)


@pytest.fixture(scope="module")
def shared_url(one_url: str) -> str:
    """The database, emptied once for a whole file, whose tests keep apart by the names of their queues."""
    return emptied(one_url)


def emptied(url: str) -> str:
    tables = sql.SQL(", ").join(sql.Identifier("fleet", table.name) for table in metadata.sorted_tables)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(tables))
    return url


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test knows."""
    return f"queue-{uuid4().hex[:12]}"


@pytest.fixture
async def lease(connection: AsyncConnection, queue: str) -> Lease:
    """A good lease, which outlives the test."""
    return await new_lease(connection, worker="holder", ttl=MINUTE, queues=[queue, "default"])


@pytest.fixture
async def rival(connection: AsyncConnection, queue: str) -> Lease:
    """Another worker's lease, as good as the first."""
    return await new_lease(connection, worker="rival", ttl=MINUTE, queues=[queue, "default"])


@pytest.fixture(scope="module")
async def three(shared_url: str) -> AsyncIterator[tuple[AsyncConnection, AsyncConnection, AsyncConnection]]:
    """Opened once: hundreds of short tests use them."""
    database = Database(shared_url, Settings(ttl=MINUTE))
    async with (
        await database.connect("first") as first,
        await database.connect("second") as second,
        await database.connect("watch") as watch,
    ):
        yield first, second, watch


@pytest.fixture
async def stage(three: tuple[AsyncConnection, AsyncConnection, AsyncConnection], queue: str) -> AsyncIterator[Stage]:
    first, second, watch = three
    lease, rival = [await new_lease(watch, worker=worker, ttl=MINUTE, queues=[queue]) for worker in ("holder", "rival")]
    stage = Stage(first, second, watch, queue, lease, rival)
    yield stage
    await stage.nothing_is_left_behind()
