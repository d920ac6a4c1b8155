"""Whether this code works with the schema: asked before the first write. A worker is asked as it registers (heartbeat.py)."""

import psycopg

from fleet.errors import SchemaMismatch
from fleet.postgres.database import AsyncConnection, Connection, Row, Statement, run, run_sync
from fleet.schema import mismatch

REVISION = Statement("""
SELECT max(version_num)
FROM fleet.fleet_alembic_version
""")


async def demand(connection: AsyncConnection) -> None:
    """Raise SchemaMismatch where it does not. Writes nothing, and waits for nobody."""
    try:
        rows = await run(connection, REVISION)
    except psycopg.errors.UndefinedTable:
        rows = [(None,)]
    demand_of(rows[0])


def demand_sync(connection: Connection) -> None:
    """Do the same on a synchronous connection."""
    try:
        rows = run_sync(connection, REVISION)
    except psycopg.errors.UndefinedTable:
        rows = [(None,)]
    demand_of(rows[0])


def demand_of(row: Row) -> None:
    """Do the same with an answer to REVISION."""
    wrong: SchemaMismatch | None = mismatch(row[0])
    if wrong is not None:
        raise wrong
