"""A real PostgreSQL for every test: the embedded one, or whatever FLEET_TEST_DATABASE_URL names."""

import signal
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.config import Settings
from fleet.postgres.database import AsyncConnection, Database
from fleet.postgres.scratch import new_database
from fleet.testing import databases

# A shell that runs the tests in its background, or under nohup, lets them ignore these; and what they start would, too.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)

pytest_plugins = ["tests.catalogue.plugin"]

SERVER = {"fsync": "off", "max_connections": "300", "shared_buffers": "256MB"}
SETTINGS = Settings(ttl=timedelta(seconds=2), slots=8)

# What lies here takes long, since it breaks real things: `make test-faults` runs it.
FAULTS = [Path(__file__).with_name(name) for name in ("faults", "processes")]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their place."""
    for item in items:
        if any(item.path.is_relative_to(place) for place in FAULTS):
            item.add_marker("faults")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of a server on which databases may be created."""
    with databases.server(SERVER) as url:
        yield url


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """The name of a migrated database that others are cloned from."""
    with databases.template(server_url) as name:
        yield name


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """The URL of a database of this test alone, with the schema and nothing else."""
    with new_database(server_url, template) as url:
        yield url


@pytest.fixture
def settings() -> Settings:
    return SETTINGS


@pytest.fixture
def database(database_url: str, settings: Settings) -> Database:
    return Database(database_url, settings)


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[AsyncConnection]:
    async with await database.connect("test") as connection:
        yield connection


@pytest.fixture
async def other(database: Database) -> AsyncIterator[AsyncConnection]:
    """A second connection, for what two do at once."""
    async with await database.connect("test other") as connection:
        yield connection
