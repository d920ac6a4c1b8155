"""An app on an empty database, and a record of what its worker tells."""

from collections.abc import AsyncIterator, Iterator

import pytest

from fleet import Fleet, Settings
from fleet.events import Events
from fleet.postgres.database import AsyncConnection, Connection, Database
from fleet.postgres.scratch import new_database
from fleet.postgres.tables import metadata
from tests.worker.steps import Recorder


@pytest.fixture(scope="session")
def shared_database(server_url: str, template: str) -> Iterator[tuple[str, Connection]]:
    """One database for all tests of this folder: making and dropping one takes longer than most of them."""
    with new_database(server_url, template) as url, Connection.connect(url, autocommit=True) as cleaner:
        yield url, cleaner


@pytest.fixture
def database_url(shared_database: tuple[str, Connection]) -> Iterator[str]:
    """The URL of a database with the schema and nothing else."""
    url, cleaner = shared_database
    yield url
    cleaner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for table in metadata.tables:
        cleaner.execute(f"DELETE FROM {table}".encode())


@pytest.fixture
async def app(database_url: str, settings: Settings) -> AsyncIterator[Fleet]:
    async with Fleet(database_url, settings=settings) as app:
        yield app


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Events())


@pytest.fixture
async def holder(database: Database) -> AsyncIterator[AsyncConnection]:
    """A session without time-outs, for locks that are held as long as a test likes. Leaving it lets them go."""
    conninfo = database.conninfo("test holder", bounded=False)
    async with await AsyncConnection.connect(conninfo, autocommit=True) as connection:
        yield connection
