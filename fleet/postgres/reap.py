"""Settle what vanished workers left behind: mark their leases, then sweep their tasks. Any process may, at any time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from fleet.postgres.database import AsyncConnection, Statement, run

SWEEP_BATCH = 500
NOBODY = UUID(int=0)

# All that a worker has to know in a quiet period, in one statement: a fleet without work costs its server little else.
SURVEY = Statement("""
SELECT id, ttl, renewed_at, expires_at <= clock_timestamp() OR renewed_at > clock_timestamp() AS expired,
  state IN ('REAPED', 'RELEASED') AS ended,
  coalesce((SELECT task.expires_at
            FROM fleet.task
            WHERE task.state = 'QUEUED' AND task.expires_at IS NOT NULL
            ORDER BY task.expires_at
            LIMIT 1) <= clock_timestamp(), false) AS overdue
FROM fleet.lease
WHERE cleared_at IS NULL
""")

# Autocommit, alone. Only after it has committed may a sweep begin: the sweep's snapshot then sees every claim that got in
# before. In one transaction with the sweep, a reaper frozen between the two would hide the lease from all others.
# SKIP LOCKED passes over a lease whose claim is in flight, and one that another reaper is marking.
# Renewed later than now means that the clock was set back: such a lease would outlive its dead holder by as much.
MARK = Statement("""
WITH dead AS MATERIALIZED (
  SELECT id
  FROM fleet.lease
  WHERE id = ANY (:accused::uuid[]) AND state IN ('LIVE', 'DRAINING')
    AND (expires_at <= clock_timestamp() OR renewed_at > clock_timestamp())
  ORDER BY id
  FOR UPDATE SKIP LOCKED
), marked AS (
  UPDATE fleet.lease
  SET state = 'REAPED', idle = false
  FROM dead
  WHERE lease.id = dead.id
  RETURNING lease.id
), counted AS (
  INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
  SELECT :me::uuid, 'lease_expirations', '', '', count(*)
  FROM marked
  HAVING count(*) > 0
  ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
)
SELECT id FROM marked
""")

# By who knows that the holder is dead, such as the parent of its process. It waits for a claim in flight.
END = Statement("""
WITH dead AS MATERIALIZED (
  SELECT id
  FROM fleet.lease
  WHERE id = ANY (:leases::uuid[]) AND state IN ('LIVE', 'DRAINING')
  ORDER BY id
  FOR UPDATE
), ended AS (
  UPDATE fleet.lease
  SET state = 'REAPED', idle = false
  FROM dead
  WHERE lease.id = dead.id
  RETURNING lease.id
), counted AS (
  INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
  SELECT :me::uuid, 'lease_expirations', '', '', count(*)
  FROM ended
  HAVING count(*) > 0
  ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
)
SELECT id FROM ended
""")

# Suspects are read without locks and carry the fence. RECLAIM locks the rows and compares it with the newest version:
# a query that tested the lease's state while locking the tasks took 357 tasks from live leases.
# OFFSET 0 keeps the planner to one look at the running index for each lease: joined freely, it reads that index whole.
# (In ORPHANS it keeps it from walking the primary key, which has the order.)
SUSPECTS = Statement("""
SELECT held.id, held.attempt, lease.id,
  format('worker exited before completion: lease %s of %s on host %s, pid %s, last renewed at %s',
    lease.id, lease.worker, lease.host, lease.pid, lease.renewed_at) AS reason
FROM fleet.lease
CROSS JOIN LATERAL (
  SELECT task.id, task.attempt
  FROM fleet.task
  WHERE task.lease_id = lease.id AND task.state = 'RUNNING' AND task.id > :after::uuid
  OFFSET 0
) AS held
WHERE lease.id = ANY (:leases::uuid[]) AND lease.state IN ('REAPED', 'RELEASED')
ORDER BY held.id
LIMIT :batch::int
""")

ORPHANS = Statement("""
SELECT orphan.id, orphan.attempt, orphan.lease_id,
  format('worker exited before completion: lease %s is not on record', orphan.lease_id) AS reason
FROM (
  SELECT task.id, task.attempt, task.lease_id
  FROM fleet.task
  LEFT JOIN fleet.lease ON lease.id = task.lease_id
  WHERE task.state = 'RUNNING' AND lease.id IS NULL AND task.id > :after::uuid
  OFFSET 0
) AS orphan
ORDER BY orphan.id
LIMIT :batch::int
""")

# Rows are locked in the order of their ids. Whoever sleeps is told of what was put back: the reaper itself may have no room.
RECLAIM = Statement("""
WITH suspect AS MATERIALIZED (
  SELECT given.id, given.attempt, given.lease_id, given.reason
  FROM unnest(:ids::uuid[], :attempts::int[], :leases::uuid[], :reasons::text[]) AS given (id, attempt, lease_id, reason)
  ORDER BY given.id
), held AS MATERIALIZED (
  SELECT suspect.reason, suspect.attempt AS attempt_seen, suspect.lease_id AS lease_seen, task.*
  FROM suspect
  CROSS JOIN LATERAL (
    SELECT task.id, task.attempt, task.lease_id, task.state, task.queue, task.repeatable, task.cancel_requested,
      task.failures, task.losses, task.max_losses, task.max_attempts
    FROM fleet.task
    WHERE task.id = suspect.id
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS task
), judged AS MATERIALIZED (
  SELECT id, attempt, lease_id, queue, losses, reason,
    CASE WHEN NOT repeatable THEN 'FAILED'
         WHEN cancel_requested THEN 'CANCELLED'
         WHEN losses + 1 >= max_losses OR failures + losses + 1 >= max_attempts THEN 'FAILED'
         ELSE 'QUEUED' END AS state,
    CASE WHEN repeatable THEN 'crash_budget_exhausted' ELSE 'lease_expired' END AS code
  FROM held
  WHERE state = 'RUNNING' AND attempt = attempt_seen AND lease_id = lease_seen
), settled AS (
  UPDATE fleet.task
  SET state = judged.state, lease_id = NULL, losses = judged.losses + 1,
      run_at = CASE WHEN judged.state = 'QUEUED'
                    THEN clock_timestamp()
                         + least(:backoff_base::interval * power(2, least(judged.losses, 30)), :backoff_cap::interval)
                         * (0.8 + 0.4 * random())
                    ELSE task.run_at END,
      finished_at = CASE WHEN judged.state <> 'QUEUED' THEN clock_timestamp() END,
      failure_code = CASE WHEN judged.state = 'FAILED' THEN judged.code END,
      failure_reason = CASE WHEN judged.state = 'FAILED' THEN judged.reason END
  FROM judged
  WHERE task.id = judged.id
  RETURNING task.id
), history AS (
  INSERT INTO fleet.attempt (task_id, attempt, lease_id, outcome, detail)
  SELECT id, attempt, lease_id, 'lost', reason
  FROM judged
  ORDER BY id
), counted AS (
  INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
  SELECT :me::uuid, CASE WHEN state = 'FAILED' THEN 'dead_letters' ELSE 'reclaims' END,
    queue, CASE WHEN state = 'FAILED' THEN code ELSE '' END, count(*)
  FROM judged
  WHERE state <> 'CANCELLED'
  GROUP BY 2, 3, 4
  ORDER BY 2, 3, 4
  ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
), announced AS MATERIALIZED (
  SELECT pg_notify('fleet', left(queue, 1000))
  FROM (SELECT DISTINCT queue FROM judged WHERE state = 'QUEUED') AS woken
)
SELECT count(*) FILTER (WHERE state = 'QUEUED') AS requeued,
  count(*) FILTER (WHERE state = 'FAILED') AS failed,
  count(*) FILTER (WHERE state = 'CANCELLED') AS cancelled,
  (SELECT count(*) FROM announced) AS announced
FROM judged
""")

# An ended lease claims nothing, so a snapshot taken now sees all that it will ever hold.
CLEAR = Statement("""
UPDATE fleet.lease
SET cleared_at = clock_timestamp()
WHERE id = ANY (:leases::uuid[]) AND state IN ('REAPED', 'RELEASED') AND cleared_at IS NULL
  AND NOT EXISTS (SELECT FROM fleet.task WHERE task.lease_id = lease.id AND task.state = 'RUNNING')
""")


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """One lease as the database shows it. `ended`: it is over, and what it holds waits for the sweep."""

    id: UUID
    ttl: timedelta
    renewed_at: datetime
    expired: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """Every lease that is not cleared; and whether some task was not started before its `expires_at`."""

    leases: list[LeaseSeen]
    overdue: bool


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """How many tasks a sweep settled, and as what."""

    requeued: int = 0
    failed: int = 0
    cancelled: int = 0

    def __add__(self, other: "Reclaimed") -> "Reclaimed":
        return Reclaimed(self.requeued + other.requeued, self.failed + other.failed, self.cancelled + other.cancelled)

    def __bool__(self) -> bool:
        return bool(self.requeued or self.failed or self.cancelled)


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Who sweeps, for the counters, and how long a task that lost its worker waits for the next one."""

    id: UUID
    backoff_base: timedelta
    backoff_cap: timedelta


async def survey(connection: AsyncConnection) -> Survey:
    """Look at what may need doing. Where there is no lease at all, tasks may be overdue for all that is known."""
    rows = await run(connection, SURVEY)
    return Survey([LeaseSeen(*row[:5]) for row in rows], not rows or bool(rows[0][5]))


async def mark(connection: AsyncConnection, me: UUID, accused: Sequence[UUID]) -> list[UUID]:
    """LIVE, DRAINING → REAPED for those of the accused that are expired by the database's clock. Returns them."""
    return [row[0] for row in await run(connection, MARK, me=me, accused=list(accused))]


async def end(connection: AsyncConnection, me: UUID, leases: Sequence[UUID]) -> list[UUID]:
    """LIVE, DRAINING → REAPED at once, because the caller knows that the holders are dead. Returns them."""
    return [row[0] for row in await run(connection, END, me=me, leases=list(leases))]


async def sweep(connection: AsyncConnection, sweeper: Sweeper, leases: Sequence[UUID]) -> Reclaimed:
    """Settle every task that ended leases still hold; a lease that holds none any more is cleared.

    A row that somebody else has locked is left for the next sweep. Safe anywhere, any number of times at once.
    """
    total = await _reclaim_all(connection, sweeper, SUSPECTS, leases=list(leases))
    await run(connection, CLEAR, leases=list(leases))
    return total


async def sweep_orphans(connection: AsyncConnection, sweeper: Sweeper) -> Reclaimed:
    """Settle RUNNING tasks whose lease has no row at all. Reads the whole running index: seldom, please."""
    return await _reclaim_all(connection, sweeper, ORPHANS)


async def _reclaim_all(
    connection: AsyncConnection, sweeper: Sweeper, suspects: Statement, **which: object
) -> Reclaimed:
    total, after = Reclaimed(), NOBODY
    while True:
        rows = await run(connection, suspects, **which, after=after, batch=SWEEP_BATCH)
        if not rows:
            return total
        after = rows[-1][0]
        answer = await run(
            connection,
            RECLAIM,
            me=sweeper.id,
            ids=[row[0] for row in rows],
            attempts=[row[1] for row in rows],
            leases=[row[2] for row in rows],
            reasons=[row[3] for row in rows],
            backoff_base=sweeper.backoff_base,
            backoff_cap=sweeper.backoff_cap,
        )
        requeued, failed, cancelled, _ = answer[0]
        total += Reclaimed(requeued, failed, cancelled)
