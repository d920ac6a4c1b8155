"""Delete what has been kept long enough, in bounded batches. Never a task that is not terminal, never a dead letter."""

from datetime import timedelta
from uuid import UUID

from fleet.postgres.database import AsyncConnection, Statement, run

PRUNE_BATCH = 1000

# Ids are UUIDv7 and begin with the milliseconds of their making: the primary key is walked from the oldest on, and no
# index on the hot table is needed for this. A task that waits or has failed for long is stepped over.
PRUNE_TASKS = Statement("""
WITH old AS MATERIALIZED (
  SELECT id, state, finished_at, resolved_at
  FROM fleet.task
  WHERE id > :after::uuid AND id < :before::uuid
  ORDER BY id
  LIMIT :batch::int
), purged AS (
  DELETE FROM fleet.task
  USING old
  WHERE task.id = old.id AND task.finished_at < clock_timestamp() - :retention::interval
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

PRUNE_SUBMISSIONS = Statement("""
WITH old AS MATERIALIZED (
  SELECT submission.scope, submission.key
  FROM fleet.submission
  WHERE submission.created_at < clock_timestamp() - greatest(:retention::interval, interval '7 days')
    AND NOT EXISTS (SELECT FROM fleet.task WHERE task.id = submission.task_id)
  ORDER BY submission.created_at
  LIMIT :batch::int
)
DELETE FROM fleet.submission
USING old
WHERE submission.scope = old.scope AND submission.key = old.key
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
)
INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
SELECT :nobody::uuid, name, queue, reason, sum(value)
FROM folded
GROUP BY name, queue, reason
ORDER BY name, queue, reason
ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
""")

NOBODY = UUID(int=0)


async def prune(connection: AsyncConnection, me: UUID, now_ms: int, retention: timedelta) -> int:
    """Delete terminal tasks that finished longer ago than `retention`, and what belongs to them. Returns how many.

    `now_ms`: Unix time in milliseconds, used only to leave the youngest ids alone.
    """
    before = UUID(int=max(0, now_ms - round(retention.total_seconds() * 1000)) << 80)
    after, purged = NOBODY, 0
    while True:
        rows = await run(
            connection, PRUNE_TASKS, me=me, after=after, before=before, batch=PRUNE_BATCH, retention=retention
        )
        looked, last, deleted = rows[0]
        purged += int(deleted)
        if looked < PRUNE_BATCH:
            break
        after = last
    await run(connection, PRUNE_SUBMISSIONS, retention=retention, batch=PRUNE_BATCH)
    await run(connection, PRUNE_LEASES, retention=retention, batch=PRUNE_BATCH)
    await run(connection, FOLD, nobody=NOBODY, batch=PRUNE_BATCH)
    return purged
