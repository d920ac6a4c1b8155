"""Wake-up by NOTIFY: a hint only. A worker says that it sleeps; from then on an insert announces itself."""

from uuid import UUID

from fleet.postgres.database import AsyncConnection, Statement, run

# A server that crashes may forget this: nobody waits until it is on disk.
SET_IDLE = Statement("""
UPDATE fleet.lease
SET idle = :idle::bool
WHERE id = :lease::uuid AND idle <> :idle::bool
RETURNING set_config('synchronous_commit', 'off', true)
""")

SNAPSHOT_END = Statement("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")

SNAPSHOT_BEGIN = Statement("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")


async def listen(connection: AsyncConnection) -> None:
    """From the commit of this on, notifications reach the connection."""
    await connection.execute("LISTEN fleet")


async def set_idle(connection: AsyncConnection, lease_id: UUID, *, idle: bool) -> None:
    """Say that this worker sleeps and wants to be woken, or that it does not."""
    await run(connection, SET_IDLE, lease=lease_id, idle=idle)


async def barrier(connection: AsyncConnection) -> int:
    """Take, after `set_idle` has committed, the mark that `passed` compares with."""
    return int((await run(connection, SNAPSHOT_END))[0][0])


async def passed(connection: AsyncConnection, mark: int) -> bool:
    """Tell whether every transaction that could not see this worker's idleness has ended."""
    return int((await run(connection, SNAPSHOT_BEGIN))[0][0]) >= mark
