"""/livez and /readyz."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
import psycopg
import pytest
from psycopg import sql

from fleet import Fleet, Settings, __version__
from fleet.http.server import asgi
from fleet.postgres.database import AsyncConnection
from tests.http.conftest import client_of
from tests.http.shop import shop
from tests.http.steps import problem

TOKEN = "0123456789abcdef"
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture
async def nowhere(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """The API of a shop whose database cannot be reached."""
    quick = settings.changed(statement_timeout=timedelta(seconds=2))
    async with client_of(asgi(shop(NOWHERE, quick), token=TOKEN)) as client:
        yield client


@contextmanager
def revision(database_url: str, changed: str) -> Iterator[None]:
    """Let the schema say that it is another one."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        (now,) = connection.execute("SELECT version_num FROM fleet.fleet_alembic_version").fetchone() or ("",)
        connection.execute(changed.encode())
        yield
        connection.execute("DELETE FROM fleet.fleet_alembic_version")
        connection.execute("INSERT INTO fleet.fleet_alembic_version VALUES (%s)", (now,))


async def test_life_is_told_without_the_database(nowhere: httpx.AsyncClient) -> None:
    answer = await nowhere.get("/livez")
    assert (answer.status_code, answer.json()) == (200, {"status": "alive", "version": __version__})


async def test_life_opens_no_connection_where_the_database_can_be_reached(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    for _ in range(3):
        assert (await api.get("/livez")).status_code == 200
    assert await sessions(connection) == set()


async def sessions(connection: AsyncConnection) -> set[int]:
    found = await connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    return {row[0] for row in await found.fetchall()}


async def test_readiness_names_the_schema_and_keeps_its_connection(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    seen = []
    for _ in range(5):
        answer = await api.get("/readyz")
        assert answer.status_code == 200
        assert set(answer.json()) == {"status", "schema_revision"}
        seen.append(await sessions(connection))
    assert len(seen[0]) == 1
    assert seen == 5 * [seen[0]]


async def test_readiness_says_that_the_database_is_not_there(nowhere: httpx.AsyncClient) -> None:
    told = problem(await nowhere.get("/readyz"), 503, "not_ready")
    assert [each["check"] for each in told["errors"]] == ["database"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("UPDATE fleet.fleet_alembic_version SET version_num = 'later'", "Upgrade pgfleet"),
        ("DELETE FROM fleet.fleet_alembic_version", "fleet db upgrade"),
    ],
)
async def test_readiness_says_that_the_schema_does_not_fit(
    api: httpx.AsyncClient, database_url: str, changed: str, words: str
) -> None:
    with revision(database_url, changed):
        told = problem(await api.get("/readyz"), 503, "not_ready")
    assert [each["check"] for each in told["errors"]] == ["schema"]
    assert words in told["errors"][0]["detail"]
    assert (await api.get("/readyz")).status_code == 200


async def test_readiness_comes_back_with_the_database(
    api: httpx.AsyncClient, server_url: str, database_url: str
) -> None:
    name = sql.Identifier(httpx.URL(database_url).path[1:])
    assert (await api.get("/readyz")).status_code == 200
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        try:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (httpx.URL(database_url).path[1:],),
            )
            told = problem(await api.get("/readyz"), 503, "not_ready")
        finally:
            admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
    assert [each["check"] for each in told["errors"]] == ["database"]
    assert (await api.get("/readyz")).status_code == 200


async def test_probes_need_no_token(app: Fleet) -> None:
    async with client_of(asgi(app, token=TOKEN)) as api:
        assert [(await api.get(path)).status_code for path in ("/livez", "/readyz", "/tasks")] == [200, 200, 401]


async def test_a_table_that_is_not_there_is_told_as_a_schema_that_does_not_fit(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    await connection.execute("ALTER TABLE fleet.task RENAME TO gone")
    try:
        problem(await api.get("/tasks"), 503, "schema_mismatch")
        problem(await api.post("/tasks", json={"name": "echo"}), 503, "schema_mismatch")
    finally:
        await connection.execute("ALTER TABLE fleet.gone RENAME TO task")
