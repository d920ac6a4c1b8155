"""Bring the schema up to date: one migrator at a time, patient with locks, and not over the heads of running workers."""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from fleet import schema
from fleet.errors import UpgradeRefused
from fleet.postgres.database import Database

TRIES = 10
PAUSE_SECONDS_MAX = 5.0
LOCK_TIMEOUT_MS = 2000
MIGRATOR = 0x666C656574  # "fleet", as the number of an advisory lock
REGISTERING = MIGRATOR + 1  # who registers a lease shares this one: see fleet.enter() in the first revision
_NAMED_MAX = 10

_MISFITS = text("""
SELECT id, worker, host, version, schema_min, schema_max
FROM fleet.lease
WHERE state IN ('LIVE', 'DRAINING') AND expires_at > clock_timestamp() AND :number NOT BETWEEN schema_min AND schema_max
ORDER BY worker, id
""")

# What a migrator makes belongs to whom the schema belongs to, so that any other migrator may change it later.
ACT_AS_OWNER = """
SELECT set_config('role', pg_get_userbyid(nspowner), true)
FROM pg_namespace
WHERE nspname = 'fleet'
  AND pg_has_role(nspowner, CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END)
"""


class Misfit(NamedTuple):
    """A worker with a good lease whose code does not work with the schema that is to be."""

    id: UUID
    worker: str
    host: str
    version: str
    schema_min: int
    schema_max: int

    def __str__(self) -> str:
        version = f"pgfleet {self.version}, " if self.version else ""
        return f"{self.worker} on {self.host} ({version}schemas {self.schema_min} to {self.schema_max})"


def upgrade(database: Database, *, force: bool = False) -> list[Misfit]:
    """Migrate to the newest schema. Does nothing where it is there already; safe to run from many places at once.

    A table that is in use is waited for 2 s at a time, so that a migration never queues up everybody behind it.
    Raises UpgradeRefused, and the schema stays, while a worker runs whose code does not work with the new one; with
    `force` it goes on, and returns those workers.
    """
    for tried in range(1, TRIES + 1):
        try:
            with _alone(database.engine("migrate", bounded=False)), _patient(database).connect() as connection:
                return _migrate(connection, force=force)
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != "55P03" or tried == TRIES:
                raise
            time.sleep(min(0.1 * 2**tried, PAUSE_SECONDS_MAX))
    raise AssertionError  # the last try returns or raises


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Keep other migrators out, by a transaction beside the migrations' own: each revision has one, or none at all."""
    with engine.begin() as guard:
        guard.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATOR})
        # Last: a SELECT's snapshot lives on until the next statement, and an index that is built concurrently waits for it.
        guard.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        yield


def _patient(database: Database) -> Engine:
    """Return an engine whose every transaction acts as the schema's owner, and waits for no lock for long."""
    engine = database.engine("migrate", bounded=False)

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        connection.exec_driver_sql(ACT_AS_OWNER)

    event.listen(engine, "begin", begin)
    return engine


def _migrate(connection: Connection, *, force: bool) -> list[Misfit]:
    with connection.begin():
        if connection.scalar(text("SELECT to_regnamespace('fleet')")) is None:
            connection.execute(text("CREATE SCHEMA fleet"))
        now, newest = schema.number_of(_found(connection)), schema.number_of(head())
        if now is not None and newest is not None and now < newest:
            _judge(connection, newest, force=force)  # before the work is done; what counts is said at its end
    overruled: dict[UUID, Misfit] = {}

    def judge(*, ctx: MigrationContext, step: Any, **_: object) -> None:
        number = schema.number_of(step.up_revision_id)
        if number is not None and ctx.connection is not None:
            overruled.update((each.id, each) for each in _judge(ctx.connection, number, force=force))

    command.upgrade(_config(connection, judge=judge), "head")
    return list(overruled.values())


def _judge(connection: Connection, number: int, *, force: bool) -> list[Misfit]:
    """Look for workers that do not work with this schema, and let none register until this transaction has ended.

    Last in the transaction: who registers has locked the table of leases before it waits here, and so has a migration.
    """
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": REGISTERING})
    found = [Misfit(*row) for row in connection.execute(_MISFITS, {"number": number})]
    if found and not force:
        more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
        raise UpgradeRefused(
            f"schema {number} does not suit {len(found)} of the workers that run now: "
            f"{', '.join(map(str, found[:_NAMED_MAX]))}{more}. Nothing was changed. Replace them by workers of a version "
            f"that works with schema {number}, or let them drain (`fleet worker drain NAME`), and run this again. "
            "--force goes on without waiting for them."
        )
    return found


def check(database: Database) -> str:
    """Return the schema's revision. Raises SchemaMismatch where this code does not work with it."""
    with database.engine("check").connect() as connection:
        return _fitting(_found(connection))


async def check_async(engine: AsyncEngine) -> str:
    """Do the same on an async engine."""
    async with engine.connect() as connection:
        return _fitting(await connection.run_sync(_found))


def _found(connection: Connection) -> str | None:
    return MigrationContext.configure(
        connection, opts={"version_table": "fleet_alembic_version", "version_table_schema": "fleet"}
    ).get_current_revision()


def _fitting(found: str | None) -> str:
    wrong = schema.mismatch(found)
    if wrong is not None or found is None:
        raise wrong or AssertionError
    return found


def head() -> str | None:
    """Return the newest revision that this code can make."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def statements(revisions: str = "head") -> str:
    """Return the SQL of the whole schema, or from one revision to another (`0001:0002`), for those who must review it."""
    out = io.StringIO()
    command.upgrade(_config(output=out), revisions, sql=True)
    return ("CREATE SCHEMA IF NOT EXISTS fleet;\n\n" if revisions == "head" else "") + out.getvalue()


def _config(connection: Connection | None = None, output: io.StringIO | None = None, judge: Any = None) -> Config:
    config = Config(output_buffer=output)
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["judge"] = judge
    return config


def _scripts() -> Path:
    """Return where the migrations are: inside the installed package, or beside it in a checkout."""
    package = Path(str(files("fleet")))
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "alembic"
