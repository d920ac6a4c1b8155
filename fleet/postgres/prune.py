"""Delete what has been kept long enough, in bounded batches. Never a task that is not terminal, never a dead letter."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from fleet.postgres.database import AsyncConnection, Row, Statement, run

PRUNE_BATCH = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Rest = Callable[[float], Awaitable[None]]

SHORTEST = Statement("""
SELECT least(:retention::interval, min(retention))
FROM fleet.queue
""")

# Ids are UUIDv7 and begin with the milliseconds of their making: the primary key is walked from the oldest on, and no
# index on the hot table is needed for this. A task that waits, has failed for long, or belongs to a queue that keeps for
# longer is stepped over. A batch ends early where its tasks have had as many attempts as it may have tasks.
PRUNE_TASKS = Statement("""
WITH met AS MATERIALIZED (
  SELECT id, queue, sum(attempt) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS attempts_before
  FROM (
    SELECT id, queue, attempt
    FROM fleet.task
    WHERE id > :after::uuid AND id < :before::uuid
    ORDER BY id
    LIMIT :batch::int
  ) AS next
), old AS MATERIALIZED (
  SELECT met.id, coalesce(queue.retention, :retention::interval) AS retention
  FROM met
  LEFT JOIN fleet.queue ON queue.name = met.queue
  WHERE coalesce(met.attempts_before, 0) < :batch::int
), purged AS (
  DELETE FROM fleet.task
  USING old
  WHERE task.id = old.id AND task.finished_at < clock_timestamp() - old.retention
    AND (task.state IN ('SUCCEEDED', 'CANCELLED') OR (task.state = 'FAILED' AND task.resolved_at IS NOT NULL))
  RETURNING task.id, task.queue
), forgotten AS (
  DELETE FROM fleet.attempt
  USING purged
  WHERE attempt.task_id = purged.id
), counted AS (
  INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
  SELECT :me::uuid, 'purged', queue, '', count(*)
  FROM purged
  GROUP BY queue
  ORDER BY queue
  ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
)
SELECT (SELECT count(*) FROM old), (SELECT id FROM old ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM purged)
""")

# A key is kept for a week at least, and as long as its task. Those of one microsecond at the seam of two batches wait for
# the next pass.
PRUNE_SUBMISSIONS = Statement("""
WITH old AS MATERIALIZED (
  SELECT scope, key, task_id, created_at
  FROM fleet.submission
  WHERE created_at > :after::timestamptz
    AND created_at < clock_timestamp() - greatest(:retention::interval, interval '7 days')
  ORDER BY created_at
  LIMIT :batch::int
), purged AS (
  DELETE FROM fleet.submission
  USING old
  WHERE submission.scope = old.scope AND submission.key = old.key
    AND NOT EXISTS (SELECT FROM fleet.task WHERE task.id = old.task_id)
)
SELECT count(*), max(created_at)
FROM old
""")

PRUNE_LEASES = Statement("""
WITH old AS MATERIALIZED (
  SELECT id
  FROM fleet.lease
  WHERE cleared_at < clock_timestamp() - :retention::interval
  ORDER BY id
  LIMIT :batch::int
)
DELETE FROM fleet.lease
USING old
WHERE lease.id = old.id
RETURNING lease.id
""")

# A writer whose lease has ended counts no more: its numbers move to the account of nobody, and the table stays small.
FOLD = Statement("""
WITH ended AS MATERIALIZED (
  SELECT counter.writer, counter.name, counter.queue, counter.reason
  FROM fleet.counter
  WHERE counter.writer <> :nobody::uuid
    AND NOT EXISTS (SELECT FROM fleet.lease
                    WHERE lease.id = counter.writer AND (lease.cleared_at IS NULL
                      OR lease.cleared_at > clock_timestamp() - interval '1 hour'))
  ORDER BY counter.writer, counter.name, counter.queue, counter.reason
  LIMIT :batch::int
  FOR UPDATE SKIP LOCKED
), folded AS (
  DELETE FROM fleet.counter
  USING ended
  WHERE counter.writer = ended.writer AND counter.name = ended.name AND counter.queue = ended.queue
    AND counter.reason = ended.reason
  RETURNING counter.name, counter.queue, counter.reason, counter.value
), added AS (
  INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
  SELECT :nobody::uuid, name, queue, reason, sum(value)
  FROM folded
  GROUP BY name, queue, reason
  ORDER BY name, queue, reason
  ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
)
SELECT name
FROM folded
""")

# One worker prunes for all: the one whose lease is the oldest.
TURN = Statement("""
SELECT id = :me::uuid
FROM fleet.lease
WHERE state = 'LIVE' AND expires_at > clock_timestamp()
ORDER BY id
LIMIT 1
""")

NOBODY = UUID(int=0)


async def no_rest(seconds: float) -> None:
    """Go on at once."""


async def my_turn(connection: AsyncConnection, me: UUID) -> bool:
    """Tell whether it is this worker that prunes. Two who both do, for a moment, are in nobody's way."""
    rows = await run(connection, TURN, me=me)
    return bool(rows and rows[0][0])


async def prune(connection: AsyncConnection, me: UUID, now_ms: int, retention: timedelta, rest: Rest = no_rest) -> int:
    """Delete terminal tasks that finished longer ago than their queue keeps them, and what belongs to them; return how many.

    `retention` is that of queues without a rule of their own. `now_ms`: Unix time in milliseconds, used only to leave the
    youngest ids alone. Every statement is bounded and commits by itself: what ends a pass half-way costs nothing, and the
    next one goes on. `rest` is awaited between two statements, and told how many seconds the last one took.
    """
    shortest: timedelta = (await run(connection, SHORTEST, retention=retention))[0][0]
    before = UUID(int=max(0, now_ms - round(shortest.total_seconds() * 1000)) << 80)
    after, purged, looked = NOBODY, 0, 1
    while looked:
        rows = await _batch(connection, PRUNE_TASKS, rest, me=me, after=after, before=before, retention=retention)
        looked, last, deleted = rows[0]
        after, purged = last or after, purged + int(deleted)
    await _prune_submissions(connection, retention, rest)
    await _repeat(connection, PRUNE_LEASES, rest, retention=retention)
    await _repeat(connection, FOLD, rest, nobody=NOBODY)
    return purged


async def _prune_submissions(connection: AsyncConnection, retention: timedelta, rest: Rest) -> None:
    after, looked = _EPOCH, PRUNE_BATCH
    while looked == PRUNE_BATCH:
        rows = await _batch(connection, PRUNE_SUBMISSIONS, rest, after=after, retention=retention)
        looked, last = rows[0]
        after = last or after


async def _repeat(connection: AsyncConnection, statement: Statement, rest: Rest, **values: Any) -> None:
    """Run a statement until it has found less than a batch."""
    found = PRUNE_BATCH
    while found == PRUNE_BATCH:
        found = len(await _batch(connection, statement, rest, **values))


async def _batch(connection: AsyncConnection, statement: Statement, rest: Rest, **values: Any) -> list[Row]:
    """Run a statement for one batch, and rest."""
    began = time.monotonic()
    rows = await run(connection, statement, batch=PRUNE_BATCH, **values)
    await rest(time.monotonic() - began)
    return rows
