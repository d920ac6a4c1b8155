"""Claim due tasks under a lease: one statement, behind one cursor for each lane."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from fleet.lease import Lease
from fleet.postgres.database import AsyncConnection, Row, Statement, array, id_array, run
from fleet.task import ClaimedTask

ARGS_INLINE_BYTES = 8192

# The first row stands for the lease (no row: it is over, or it has expired) and carries the queues' generations.
# Lanes are visited in their order; every CTE is MATERIALIZED, so that the LIMIT holds under every plan.
# The due test is statement_timestamp(): the volatile clock_timestamp() could not bound the index scan.
# Arguments are measured twice: as stored, without unpacking large ones, and as text, since they may be stored compressed.
# The lease's expiry is tested twice: the second time after a wait for its row.
CLAIM = Statement("""
WITH holder AS MATERIALIZED (
  SELECT id, expires_at, statement_timestamp() AS seen
  FROM fleet.lease
  WHERE id = :lease::uuid AND state = 'LIVE' AND expires_at > clock_timestamp()
  FOR KEY SHARE
), good AS MATERIALIZED (
  SELECT seen FROM holder WHERE expires_at > clock_timestamp()
), lane AS MATERIALIZED (
  SELECT given.queue, given.priority, given.run_at, given.id
  FROM unnest(:queues::text[], :priorities::smallint[], :run_ats::timestamptz[], :ids::uuid[])
    WITH ORDINALITY AS given (queue, priority, run_at, id, place)
  WHERE given.queue <> ALL (ARRAY(SELECT name FROM fleet.queue WHERE paused))
  ORDER BY given.place
), ready AS MATERIALIZED (
  SELECT due.id, due.repeatable
  FROM good
  CROSS JOIN lane
  CROSS JOIN LATERAL (
    SELECT task.id, handler.idempotent AND coalesce(task.idempotent, true) AS repeatable
    FROM fleet.task
    JOIN unnest(:names::text[], :idempotents::bool[]) AS handler (name, idempotent) ON handler.name = task.name
    WHERE task.queue = lane.queue AND task.priority = lane.priority AND task.state = 'QUEUED'
      AND task.run_at <= statement_timestamp() AND (task.run_at, task.id) > (lane.run_at, lane.id)
      AND (task.expires_at IS NULL OR task.expires_at > statement_timestamp())
    ORDER BY task.run_at, task.id
    LIMIT :free::int
    FOR NO KEY UPDATE OF task SKIP LOCKED
  ) AS due
  LIMIT :free::int
), claimed AS (
  UPDATE fleet.task
  SET state = 'RUNNING', attempt = task.attempt + 1, lease_id = :lease::uuid, repeatable = ready.repeatable,
      started_at = clock_timestamp()
  FROM ready
  WHERE task.id = ready.id
  RETURNING task.id, task.name, task.queue, task.priority, task.run_at, task.attempt, task.repeatable,
    task.failures, task.losses, task.timeout,
    CASE WHEN pg_column_size(task.args) <= :inline_bytes::int THEN task.args::text END AS args, task.traceparent
)
SELECT NULL::uuid AS id, NULL AS name, NULL AS queue, NULL::smallint AS priority, good.seen AS run_at, NULL::int AS attempt,
  NULL::bool AS repeatable, NULL::int AS failures, NULL::int AS losses, NULL::interval AS timeout,
  (SELECT jsonb_object_agg(queue.name, queue.generation) FROM fleet.queue WHERE queue.name = ANY (:queues::text[]))::text,
  NULL AS traceparent
FROM good
UNION ALL
SELECT id, name, queue, priority, run_at, attempt, repeatable, failures, losses, timeout,
  CASE WHEN octet_length(args) <= :inline_bytes::int THEN args END, traceparent
FROM claimed
""")

# The claim locks the lease's row, so even an empty one costs a transaction id and a flush of the log. This costs neither.
PEEK = Statement("""
WITH lane AS MATERIALIZED (
  SELECT given.queue, given.priority, given.run_at, given.id
  FROM unnest(:queues::text[], :priorities::smallint[], :run_ats::timestamptz[], :ids::uuid[])
    AS given (queue, priority, run_at, id)
  WHERE given.queue <> ALL (ARRAY(SELECT name FROM fleet.queue WHERE paused))
)
SELECT statement_timestamp() AS seen,
  EXISTS (
    SELECT
    FROM lane
    CROSS JOIN LATERAL (
      SELECT
      FROM fleet.task
      WHERE task.queue = lane.queue AND task.priority = lane.priority AND task.state = 'QUEUED'
        AND task.run_at <= statement_timestamp() AND (task.run_at, task.id) > (lane.run_at, lane.id)
        AND (task.expires_at IS NULL OR task.expires_at > statement_timestamp())
        AND task.name = ANY (:names::text[])
      ORDER BY task.run_at, task.id
      LIMIT 1
    ) AS due
  ) AS ready,
  (
    SELECT extract(epoch FROM min(next.run_at) - clock_timestamp())::float8
    FROM lane
    CROSS JOIN LATERAL (
      SELECT task.run_at
      FROM fleet.task
      WHERE task.queue = lane.queue AND task.priority = lane.priority AND task.state = 'QUEUED'
        AND task.run_at > statement_timestamp()
      ORDER BY task.run_at, task.id
      LIMIT 1
    ) AS next
  ) AS next_due_seconds,
  (SELECT jsonb_object_agg(queue.name, queue.generation) FROM fleet.queue WHERE queue.name = ANY (:queues::text[]))
""")

# From the head up to the cursor, which is (run_at, id) here: what lies behind it and should not.
LOOK_BACK = Statement("""
WITH lane AS MATERIALIZED (
  SELECT given.queue, given.priority, given.run_at, given.id
  FROM unnest(:queues::text[], :priorities::smallint[], :run_ats::timestamptz[], :ids::uuid[])
    AS given (queue, priority, run_at, id)
  WHERE given.queue <> ALL (ARRAY(SELECT name FROM fleet.queue WHERE paused))
)
SELECT lane.queue, lane.priority, behind.run_at, behind.id
FROM lane
CROSS JOIN LATERAL (
  SELECT task.run_at, task.id
  FROM fleet.task
  WHERE task.queue = lane.queue AND task.priority = lane.priority AND task.state = 'QUEUED'
    AND (task.run_at, task.id) <= (lane.run_at, lane.id)
    AND (task.expires_at IS NULL OR task.expires_at > statement_timestamp())
    AND task.name = ANY (:names::text[])
  ORDER BY task.run_at, task.id
  LIMIT 1
) AS behind
""")

FETCH_ARGS = Statement("""
SELECT args::text
FROM fleet.task
WHERE id = :id::uuid AND attempt = :attempt::int AND lease_id = :lease::uuid
""")

# What this lease holds and its process does not know of: the outcome of a claim whose answer was lost. FOR UPDATE on
# the lease waits for such a claim. To be sent only while no claim of this process is in flight or unprocessed.
RECONCILE_WAIT = Statement("SELECT id FROM fleet.lease WHERE id = :lease::uuid FOR UPDATE")
RECONCILE = Statement("""
SELECT id, name, queue, priority, run_at, attempt, repeatable, failures, losses, timeout, NULL AS args, traceparent
FROM fleet.task
WHERE state = 'RUNNING' AND lease_id = :lease::uuid AND NOT (id = ANY (:mine::uuid[]))
""")


class Position(NamedTuple):
    """Where a lane's next claim begins: behind this (run_at, id). `run_at` is a timestamp as text."""

    run_at: str
    id: UUID


HEAD = Position("-infinity", UUID(int=0))


class Lane(NamedTuple):
    """One priority of one queue, and where to go on in it."""

    queue: str
    priority: int
    position: Position


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim brought: tasks in no order, the statement's moment, and each queue's generation."""

    tasks: list[ClaimedTask]
    seen: datetime
    generations: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Peeked:
    """Whether a claim would bring something, and how many seconds until the next task is due (None: none waits)."""

    ready: bool
    seen: datetime
    next_due_seconds: float | None
    generations: Mapping[str, int]


async def claim(
    connection: AsyncConnection, lease: Lease, lanes: Sequence[Lane], handlers: Mapping[str, bool], free: int
) -> Claimed | None:
    """Take up to `free` due tasks of the lanes, in their order, for handlers given as name → idempotent.

    They become RUNNING under the lease with `attempt` raised by one; `repeatable` is decided here. None: the lease is
    over or has expired. Send one at a time for each lease.
    """
    rows = await run(
        connection,
        CLAIM,
        lease=lease.id,
        names=list(handlers),
        idempotents=list(handlers.values()),
        free=free,
        inline_bytes=ARGS_INLINE_BYTES,
        **_lanes(lanes),
    )
    holder, tasks = None, []
    for row in rows:
        if row[0] is None:
            holder = row
        else:
            tasks.append(ClaimedTask._make((*row, lease)))
    if holder is None:
        return None
    if len(tasks) > free:
        raise AssertionError(f"the claim asked for {free} tasks and was given {len(tasks)}")
    return Claimed(tasks, holder[4], json.loads(holder[10] or "{}"))


async def peek(connection: AsyncConnection, lanes: Sequence[Lane], names: Sequence[str]) -> Peeked:
    """Ask, without a trace, whether a claim would bring something."""
    rows = await run(connection, PEEK, names=list(names), **_lanes(lanes))
    seen, ready, next_due_seconds, generations = rows[0]
    return Peeked(ready, seen, next_due_seconds, generations or {})


async def look_back(
    connection: AsyncConnection, lanes: Sequence[Lane], names: Sequence[str]
) -> dict[tuple[str, int], Position]:
    """Return, for each lane with a task left behind its position, where a claim must begin to find the first of them."""
    rows = await run(connection, LOOK_BACK, names=list(names), **_lanes(lanes))
    return {(row[0], row[1]): Position(row[2].isoformat(), UUID(int=row[3].int - 1)) for row in rows}


async def fetch_args(connection: AsyncConnection, task: ClaimedTask) -> str | None:
    """Return the arguments that were too large for the claim's answer; None where the attempt is not ours any more."""
    rows = await run(connection, FETCH_ARGS, id=task.id, attempt=task.attempt, lease=task.lease.id)
    return rows[0][0] if rows else None


async def reconcile(connection: AsyncConnection, lease: Lease, mine: Sequence[UUID]) -> list[ClaimedTask]:
    """Return the tasks that are RUNNING under this lease and not among `mine`, after waiting for a claim in flight."""
    await run(connection, RECONCILE_WAIT, lease=lease.id)
    rows: list[Row] = await run(connection, RECONCILE, lease=lease.id, mine=id_array(mine))
    return [ClaimedTask._make((*row, lease)) for row in rows]


def _lanes(lanes: Sequence[Lane]) -> dict[str, object]:
    return {
        "queues": [lane.queue for lane in lanes],
        "priorities": array(lane.priority for lane in lanes),
        "run_ats": array(lane.position.run_at for lane in lanes),
        "ids": id_array(lane.position.id for lane in lanes),
    }
