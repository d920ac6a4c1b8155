"""Judge dead letters: put them back or lay them aside. Only the failure that the operator saw, and with a trace."""

from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from fleet.postgres.database import AsyncConnection, Statement, run

Judge = Callable[[AsyncConnection, Mapping[UUID, int], str], Awaitable[list[UUID]]]

BATCH = 1000  # so many are judged by one statement: none holds its locks for long

# The number of announcements is selected so that they are made: the planner drops a join of which nothing is used.
REQUEUE = Statement("""
WITH seen AS MATERIALIZED (
  SELECT given.id, given.attempt
  FROM unnest(:ids::uuid[], :attempts::int[]) AS given (id, attempt)
  ORDER BY given.id
), held AS MATERIALIZED (
  SELECT seen.attempt AS attempt_seen, task.*
  FROM seen
  CROSS JOIN LATERAL (
    SELECT task.id, task.attempt, task.queue, task.state, task.resolved_at
    FROM fleet.task
    WHERE task.id = seen.id
    FOR NO KEY UPDATE
  ) AS task
), requeued AS (
  UPDATE fleet.task
  SET state = 'QUEUED', lease_id = NULL, run_at = clock_timestamp(), finished_at = NULL, expires_at = NULL,
      failure_code = NULL, failure_reason = NULL, failures = 0, losses = 0, cancel_requested = false
  FROM held
  WHERE task.id = held.id AND held.attempt = held.attempt_seen AND held.state = 'FAILED' AND held.resolved_at IS NULL
  RETURNING task.id, task.queue, task.attempt
), history AS (
  INSERT INTO fleet.audit (actor, action, subject, detail)
  SELECT :actor::text, 'requeue', id::text, format('after attempt %s', attempt)
  FROM requeued
  ORDER BY id
), announced AS MATERIALIZED (
  SELECT pg_notify('fleet', left(queue, 1000))
  FROM (SELECT DISTINCT queue FROM requeued) AS woken
)
SELECT requeued.id, said.number
FROM requeued
CROSS JOIN (SELECT count(*) AS number FROM announced) AS said
""")

DISCARD = Statement("""
WITH seen AS MATERIALIZED (
  SELECT given.id, given.attempt
  FROM unnest(:ids::uuid[], :attempts::int[]) AS given (id, attempt)
  ORDER BY given.id
), held AS MATERIALIZED (
  SELECT seen.attempt AS attempt_seen, task.*
  FROM seen
  CROSS JOIN LATERAL (
    SELECT task.id, task.attempt, task.state, task.resolved_at
    FROM fleet.task
    WHERE task.id = seen.id
    FOR NO KEY UPDATE
  ) AS task
), discarded AS (
  UPDATE fleet.task
  SET resolved_at = clock_timestamp()
  FROM held
  WHERE task.id = held.id AND held.attempt = held.attempt_seen AND held.state = 'FAILED' AND held.resolved_at IS NULL
  RETURNING task.id, task.attempt
), history AS (
  INSERT INTO fleet.audit (actor, action, subject, detail)
  SELECT :actor::text, 'discard', id::text, format('after attempt %s', attempt)
  FROM discarded
  ORDER BY id
)
SELECT id FROM discarded
""")


async def requeue(connection: AsyncConnection, seen: Mapping[UUID, int], actor: str) -> list[UUID]:
    """FAILED → QUEUED with fresh budgets, for tasks given with the attempt that was seen to fail. Returns those moved.

    Whoever does this says that running them again is right. `attempt` goes on counting.
    """
    rows = await run(connection, REQUEUE, ids=list(seen), attempts=list(seen.values()), actor=actor)
    return [row[0] for row in rows]


async def discard(connection: AsyncConnection, seen: Mapping[UUID, int], actor: str) -> list[UUID]:
    """FAILED stays FAILED, but is no dead letter any more. Returns those discarded."""
    rows = await run(connection, DISCARD, ids=list(seen), attempts=list(seen.values()), actor=actor)
    return [row[0] for row in rows]


async def in_batches(
    connection: AsyncConnection,
    judge: Judge,
    seen: Mapping[UUID, int],
    actor: str,
    progress: Callable[[int], object] = lambda count: None,
) -> list[UUID]:
    """Judge any number, by `requeue` or `discard`, BATCH at a time: each batch is committed by itself. Returns those judged.

    `progress` is called after each batch with the number of tasks in it.
    """
    judged: list[UUID] = []
    items = list(seen.items())
    for begin in range(0, len(items), BATCH):
        batch = dict(items[begin : begin + BATCH])
        judged += await judge(connection, batch, actor)
        progress(len(batch))
    return judged
