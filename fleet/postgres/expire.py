"""Fail tasks that nobody started before their `expires_at`."""

from uuid import UUID

from fleet.postgres.database import AsyncConnection, Statement, run

EXPIRE_BATCH = 500

EXPIRE = Statement("""
WITH late AS MATERIALIZED (
  SELECT id, queue, expires_at, attempt
  FROM fleet.task
  WHERE state = 'QUEUED' AND expires_at <= statement_timestamp()
  ORDER BY expires_at
  LIMIT :batch::int
  FOR NO KEY UPDATE SKIP LOCKED
), expired AS (
  UPDATE fleet.task
  SET state = 'FAILED', lease_id = NULL, finished_at = clock_timestamp(), failure_code = 'expired',
      failure_reason = format('not started before %s', late.expires_at)
  FROM late
  WHERE task.id = late.id
  RETURNING task.id, task.queue
), counted AS (
  INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
  SELECT :me::uuid, 'dead_letters', queue, 'expired', count(*)
  FROM expired
  GROUP BY queue
  ORDER BY queue
  ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
)
SELECT count(*) FROM expired
""")


async def expire(connection: AsyncConnection, me: UUID) -> int:
    """QUEUED → FAILED `expired`, a batch at a time, until none is left. Returns how many."""
    total = 0
    while True:
        count: int = (await run(connection, EXPIRE, me=me, batch=EXPIRE_BATCH))[0][0]
        total += count
        if count < EXPIRE_BATCH:
            return total
