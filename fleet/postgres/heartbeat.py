"""A lease's life: registered, renewed, drained, closed. Who dies without closing it is ended by reap.py."""

from dataclasses import dataclass
from uuid import UUID

import psycopg

from fleet import schema
from fleet.lease import Lease, LeaseState
from fleet.postgres.database import AsyncConnection, Connection, Statement, run, run_sync

# A migration that is about to be committed is waited for, and the schema is then the new one: see fleet.enter().
REGISTER = Statement("""
WITH entered AS MATERIALIZED (
  SELECT fleet.enter() AS revision
), fitting AS MATERIALIZED (
  SELECT clock_timestamp() AS now
  FROM entered
  WHERE substring(revision FROM '^[0-9]{4}$')::int BETWEEN :schema_min::int AND :schema_max::int
), subscribed AS (
  INSERT INTO fleet.queue (name)
  SELECT name FROM fitting CROSS JOIN unnest(:queues::text[]) AS name ORDER BY name
  ON CONFLICT DO NOTHING
), granted AS (
  INSERT INTO fleet.lease
    (id, worker, host, pid, version, queues, slots, schema_min, schema_max, ttl, state, granted_at, renewed_at, expires_at)
  SELECT :lease::uuid, :worker::text, :host::text, :pid::int, :version::text, :queues::text[], :slots::int,
    :schema_min::int, :schema_max::int, :ttl::interval, 'LIVE', now, now, now + :ttl::interval
  FROM fitting
)
SELECT revision FROM entered
""")

# The row is locked first and the clock read after: in a plain UPDATE the SET list is evaluated before the wait for the
# lock, and a second time only if whoever held it had changed the row.
RENEW = Statement("""
WITH mine AS MATERIALIZED (
  SELECT id, ttl
  FROM fleet.lease
  WHERE id = :lease::uuid AND state IN ('LIVE', 'DRAINING')
  FOR NO KEY UPDATE
), renewed AS (
  UPDATE fleet.lease
  SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + mine.ttl
  FROM mine
  WHERE lease.id = mine.id
  RETURNING lease.state
)
SELECT renewed.state, request.task_id, request.attempt
FROM renewed
LEFT JOIN fleet.cancel_request AS request ON request.lease_id = :lease::uuid
""")

# The same without the requests to cancel. While somebody has locked that table, the lease must not run out: no reaper
# reads it, so each would find the lease unrenewed and nothing amiss.
RENEW_ALONE = Statement("""
WITH mine AS MATERIALIZED (
  SELECT id, ttl
  FROM fleet.lease
  WHERE id = :lease::uuid AND state IN ('LIVE', 'DRAINING')
  FOR NO KEY UPDATE
)
UPDATE fleet.lease
SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + mine.ttl
FROM mine
WHERE lease.id = mine.id
RETURNING lease.state, NULL::uuid AS task_id, NULL::int AS attempt
""")

# FOR UPDATE, because it waits for a claim of this lease that is still in flight. A plain UPDATE does not conflict with
# the claim's KEY SHARE: the task would become RUNNING after the last look at what this lease holds.
DRAIN = Statement("""
WITH mine AS MATERIALIZED (
  SELECT id
  FROM fleet.lease
  WHERE id = :lease::uuid AND state = 'LIVE'
  FOR UPDATE
)
UPDATE fleet.lease
SET state = 'DRAINING', idle = false
FROM mine
WHERE lease.id = mine.id
RETURNING lease.id
""")

# Only from DRAINING, hence only when no claim can be in flight any more.
CLOSE = Statement("""
UPDATE fleet.lease
SET state = 'RELEASED'
WHERE id = :lease::uuid AND state = 'DRAINING'
RETURNING id
""")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who holds a lease: what people read when they look for a worker."""

    worker: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease is good. `cancels` are (task id, attempt) that somebody wants stopped."""

    state: LeaseState
    cancels: frozenset[tuple[UUID, int]]


def register(connection: Connection, lease: Lease, identity: Identity) -> None:
    """Write a new lease, LIVE from now on, and make sure that the queues it subscribes to exist.

    Raises SchemaMismatch, and writes nothing, where this code does not work with the schema.
    """
    rows = run_sync(
        connection,
        REGISTER,
        lease=lease.id,
        worker=identity.worker,
        host=identity.host,
        pid=identity.pid,
        version=identity.version,
        queues=list(identity.queues),
        slots=identity.slots,
        schema_min=schema.SCHEMA_MIN,
        schema_max=schema.SCHEMA_MAX,
        ttl=lease.ttl,
    )
    wrong = schema.mismatch(rows[0][0])
    if wrong is not None:
        raise wrong


def renew(connection: Connection, lease: Lease) -> Renewed | None:
    """Move the lease's expiry to now + TTL, also after it has passed unless a reaper was there. None: it is over."""
    try:
        rows = run_sync(connection, RENEW, lease=lease.id)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        rows = run_sync(connection, RENEW_ALONE, lease=lease.id)
    if not rows:
        return None
    return Renewed(LeaseState(rows[0][0]), frozenset((task, attempt) for _, task, attempt in rows if task is not None))


async def drain(connection: AsyncConnection, lease_id: UUID) -> bool:
    """LIVE → DRAINING: from its commit on this lease claims nothing. False where it was not LIVE."""
    return bool(await run(connection, DRAIN, lease=lease_id))


async def close(connection: AsyncConnection, lease: Lease) -> bool:
    """DRAINING → RELEASED: the holder has nothing left. False where it was not DRAINING."""
    return bool(await run(connection, CLOSE, lease=lease.id))
