"""The shop's API in this process, on one database that is emptied for each test: making a database takes longer."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg import sql
from starlette.applications import Starlette

from fleet import Fleet, Settings
from fleet.http.server import asgi
from fleet.postgres.scratch import new_database
from fleet.postgres.tables import metadata
from tests.http.running import Running
from tests.http.shop import shop
from tests.support import PATIENCE_SECONDS


@pytest.fixture
def settings() -> Settings:
    """The time-outs of a production fleet: a slow machine must not meet one. Only locks are given up soon."""
    second = timedelta(seconds=1)
    return Settings(ttl=60 * second, lock_timeout=second, renew_every=second / 4, slots=8)


@pytest.fixture(scope="session")
def one_url(server_url: str, template: str) -> Iterator[str]:
    with new_database(server_url, template) as url:
        yield url


@pytest.fixture
def database_url(one_url: str) -> str:
    """The URL of a database with the schema and nothing else."""
    with psycopg.connect(one_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        for table in metadata.sorted_tables:
            connection.execute(sql.SQL("DELETE FROM fleet.{}").format(sql.Identifier(table.name)))
    return one_url


@pytest.fixture
def app(database_url: str, settings: Settings) -> Fleet:
    return shop(database_url, settings)


@asynccontextmanager
async def client_of(program: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Lend a client of a program in this process, which is closed at the end as its server would close it."""
    transport = httpx.ASGITransport(program)
    async with (
        program.router.lifespan_context(program),
        httpx.AsyncClient(transport=transport, base_url="http://api.test", timeout=PATIENCE_SECONDS) as client,
    ):
        yield client


@pytest.fixture
async def api(app: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(asgi(app, token=None)) as client:
        yield client


@pytest.fixture
def running(database_url: str, tmp_path: Path) -> Iterator[Running]:
    """A real `fleet api run`."""
    with Running(tmp_path, database_url) as running:
        yield running
