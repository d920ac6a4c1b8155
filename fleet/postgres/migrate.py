"""Bring the schema up to date: one migrator at a time, patient with locks, able to print what it would do."""

import functools
import io
import time
from importlib.resources import files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from fleet.errors import SchemaMismatch
from fleet.postgres.database import Database

TRIES = 10
PAUSE_SECONDS_MAX = 5.0
LOCK_TIMEOUT_MS = 2000
MIGRATOR = 0x666C656574  # "fleet", as the number of an advisory lock

# What a migrator makes belongs to whom the schema belongs to, so that any other migrator may change it later.
ACT_AS_OWNER = """
SELECT set_config('role', pg_get_userbyid(nspowner), true)
FROM pg_namespace
WHERE nspname = 'fleet'
  AND pg_has_role(nspowner, CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END)
"""


def upgrade(database: Database) -> None:
    """Migrate to the newest schema. Does nothing where it is there already; safe to run from many places at once.

    A table that is in use is waited for 2 s at a time, so that a migration never queues up everybody behind it.
    """
    for tried in range(1, TRIES + 1):
        try:
            with database.engine("migrate", bounded=False).begin() as connection:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATOR})
                connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
                connection.execute(text(ACT_AS_OWNER))
                if connection.scalar(text("SELECT to_regnamespace('fleet')")) is None:
                    connection.execute(text("CREATE SCHEMA fleet"))
                command.upgrade(_config(connection), "head")
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != "55P03" or tried == TRIES:
                raise
            time.sleep(min(0.1 * 2**tried, PAUSE_SECONDS_MAX))
        else:
            return


def check(database: Database) -> str:
    """Return the schema's revision. Raises SchemaMismatch where it is not the one that this code was written for."""
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
    wanted, known = _revisions(_scripts())
    if found == wanted and found is not None:
        return found
    if found is None:
        raise SchemaMismatch("the database has no fleet schema yet. Run `fleet db upgrade`.")
    if found in known:
        raise SchemaMismatch(f"the schema is at revision {found}, this code needs {wanted}. Run `fleet db upgrade`.")
    raise SchemaMismatch(
        f"the schema is at revision {found}, which this version of pgfleet (schema {wanted}) does not know. Upgrade pgfleet."
    )


@functools.cache
def _revisions(scripts: Path) -> tuple[str | None, frozenset[str]]:
    """Return the revision that the migrations in a folder lead to, and all that they know."""
    script = ScriptDirectory.from_config(_config())
    return script.get_current_head(), frozenset(revision.revision for revision in script.walk_revisions())


def statements() -> str:
    """Return the SQL of the whole schema, for those who must review it."""
    out = io.StringIO()
    command.upgrade(_config(output=out), "head", sql=True)
    return "CREATE SCHEMA IF NOT EXISTS fleet;\n\n" + out.getvalue()


def _config(connection: Connection | None = None, output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output)
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _scripts() -> Path:
    """Return where the migrations are: inside the installed package, or beside it in a checkout."""
    package = Path(str(files("fleet")))
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "alembic"
