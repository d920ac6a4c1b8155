"""Run commands in this process, on one database that is emptied for each test: making a database takes longer."""

import json
import os
import sys
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import anyio.to_thread
import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from fleet.cli import main
from fleet.config import Settings
from fleet.embedded import temporary
from fleet.postgres import migrate
from fleet.postgres.database import Database
from fleet.postgres.scratch import new_database
from fleet.postgres.tables import metadata
from tests.support import url_of

ROOT = Path(__file__).resolve().parents[2]
SHOP = """
from fleet import Fleet

app = Fleet()
no_app = 7


@app.task(idempotent=True, queue="sums")
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
def pay(card: str) -> None:
    raise ValueError(f"refused: {card}")
"""


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        """The cells of a plain table, the headings first."""
        return [line.split("\t") for line in self.out.splitlines()]


class Command(Protocol):
    """Runs `fleet ARGUMENTS` in this process."""

    def __call__(self, *arguments: object, stdin: str | None = None) -> Awaitable[Outcome]: ...


def run_sql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def shared_url(server_url: str, template: str) -> Iterator[str]:
    with new_database(server_url, template) as url:
        yield url


@pytest.fixture(scope="session")
def bare_url(server_url: str) -> Iterator[str]:
    with new_database(server_url, "template1") as url:
        yield url


@pytest.fixture
def database_url(shared_url: str) -> str:
    """The URL of a database with the schema and nothing else."""
    with psycopg.connect(shared_url, autocommit=True) as connection:
        for table in metadata.tables.values():
            connection.execute(sql.SQL("DELETE FROM fleet.{}").format(sql.Identifier(table.name)))
    return shared_url


@pytest.fixture
def empty_url(bare_url: str) -> str:
    """The URL of a database without the schema."""
    with psycopg.connect(bare_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS fleet CASCADE")
    return bare_url


@pytest.fixture(scope="session")
def sound_server() -> Iterator[str]:
    """A database with the schema on a server that loses nothing, and whose settings may be spoilt."""
    with temporary({"max_prepared_transactions": "2"}) as server:
        url = url_of(server.url, "sound")
        run_sql(server.url, "CREATE DATABASE sound")
        migrate.upgrade(Database(url, Settings()))
        yield url


@pytest.fixture
def sound_url(sound_server: str) -> str:
    """The same, without rows and settings of the tests before."""
    run_sql(sound_server, "ALTER DATABASE sound RESET ALL", "DELETE FROM fleet.lease")
    return sound_server


@pytest.fixture
def later_schema(database_url: str) -> Iterator[None]:
    """Let the schema be one of a later version."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        (now,) = connection.execute("SELECT version_num FROM fleet.fleet_alembic_version").fetchone() or ("",)
        connection.execute("UPDATE fleet.fleet_alembic_version SET version_num = 'later'")
        yield
        connection.execute("UPDATE fleet.fleet_alembic_version SET version_num = %s", (now,))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting from outside, and a directory of this test alone."""
    for name in list(os.environ):
        if name.startswith(("FLEET_", "PG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def anywhere() -> Command:
    """The command, without any database named."""

    async def run(*arguments: object, stdin: str | None = None) -> Outcome:
        def call() -> Outcome:
            result = CliRunner().invoke(main, [str(each) for each in arguments], input=stdin)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            return Outcome(result.exit_code, result.stdout, result.stderr)

        return await anyio.to_thread.run_sync(call)

    return run


@pytest.fixture
def fleet(anywhere: Command, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, with the test's own database named by the environment."""
    monkeypatch.setenv("FLEET_DATABASE_URL", database_url)
    return anywhere


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[str]:
    """MODULE:APP of an app in the current directory."""
    name = f"shop_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    yield f"{name}:app"
    sys.modules.pop(name, None)
