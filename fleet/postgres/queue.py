"""Pause and resume a queue, and say how long it keeps. The claim joins its row, so a pause holds from its commit on."""

from datetime import timedelta
from typing import Any

from fleet.errors import InvalidArguments, NotFound
from fleet.postgres.database import AsyncConnection, Statement, run

NAMES_MAX = 20
RETENTION_MIN, RETENTION_MAX = timedelta(hours=1), timedelta(days=36_500)

# A queue is known by its row, or by tasks that wait there for its first worker.
PAUSE = Statement("""
WITH known AS MATERIALIZED (
  SELECT :name::text AS name
  WHERE EXISTS (SELECT FROM fleet.queue WHERE queue.name = :name::text)
    OR EXISTS (SELECT FROM fleet.task WHERE task.queue = :name::text AND task.state = 'QUEUED')
), paused AS (
  INSERT INTO fleet.queue (name, paused)
  SELECT name, true
  FROM known
  ON CONFLICT (name) DO UPDATE SET paused = true WHERE NOT queue.paused
  RETURNING name
), history AS (
  INSERT INTO fleet.audit (actor, action, subject)
  SELECT :actor::text, 'pause', name
  FROM paused
)
SELECT EXISTS (SELECT FROM paused) AS changed FROM known
""")

# What came in during the pause lies behind the cursors: the generation tells the claimers to look from the head.
RESUME = Statement("""
WITH known AS MATERIALIZED (
  SELECT :name::text AS name
  WHERE EXISTS (SELECT FROM fleet.queue WHERE queue.name = :name::text)
    OR EXISTS (SELECT FROM fleet.task WHERE task.queue = :name::text AND task.state = 'QUEUED')
), resumed AS (
  UPDATE fleet.queue
  SET paused = false, generation = generation + 1
  WHERE name = :name::text AND paused
  RETURNING name
), history AS (
  INSERT INTO fleet.audit (actor, action, subject)
  SELECT :actor::text, 'resume', name
  FROM resumed
), announced AS MATERIALIZED (
  SELECT pg_notify('fleet', left(name, 1000))
  FROM resumed
)
SELECT (SELECT count(*) FROM announced) > 0 AS changed FROM known
""")

RETAIN = Statement("""
WITH known AS MATERIALIZED (
  SELECT :name::text AS name
  WHERE EXISTS (SELECT FROM fleet.queue WHERE queue.name = :name::text)
    OR EXISTS (SELECT FROM fleet.task WHERE task.queue = :name::text AND task.state = 'QUEUED')
), retained AS (
  INSERT INTO fleet.queue (name, retention)
  SELECT name, :retention::interval
  FROM known
  ON CONFLICT (name) DO UPDATE SET retention = EXCLUDED.retention
    WHERE queue.retention IS DISTINCT FROM EXCLUDED.retention
  RETURNING name
), history AS (
  INSERT INTO fleet.audit (actor, action, subject, detail)
  SELECT :actor::text, 'retain', name, coalesce(:retention::interval::text, 'default')
  FROM retained
)
SELECT EXISTS (SELECT FROM retained) AS changed FROM known
""")

# The names that tasks wait under are found one by one along the index.
NAMES = Statement("""
WITH RECURSIVE waiting AS (
  SELECT min(queue) AS name
  FROM fleet.task
  WHERE state = 'QUEUED'
  UNION ALL
  SELECT (SELECT min(task.queue) FROM fleet.task WHERE task.state = 'QUEUED' AND task.queue > waiting.name)
  FROM waiting
  WHERE waiting.name IS NOT NULL
)
SELECT name FROM fleet.queue
UNION
SELECT name FROM waiting WHERE name IS NOT NULL
ORDER BY name
LIMIT :limit::int
""")


async def pause(connection: AsyncConnection, name: str, actor: str) -> bool:
    """Let nobody claim from this queue; what runs goes on. False where it was paused already.

    Raises NotFound where no worker has ever served it and no task waits there: the name may be mistyped.
    """
    return await _changed(connection, PAUSE, name, actor)


async def resume(connection: AsyncConnection, name: str, actor: str) -> bool:
    """Let it be claimed from again. False where it was not paused. Raises NotFound as `pause` does."""
    return await _changed(connection, RESUME, name, actor)


async def retain(connection: AsyncConnection, name: str, retention: timedelta | None, actor: str) -> bool:
    """Let finished tasks of this queue be kept for so long; None: as the settings say. False where that was so already.

    Raises NotFound as `pause` does, and InvalidArguments for less than an hour or more than a hundred years.
    """
    if retention is not None and not RETENTION_MIN <= retention <= RETENTION_MAX:
        raise InvalidArguments(f"a queue keeps its finished tasks for 1 hour to 36500 days, not for {retention}")
    return await _changed(connection, RETAIN, name, actor, retention=retention)


async def _changed(connection: AsyncConnection, verb: Statement, name: str, actor: str, **values: Any) -> bool:
    rows = await run(connection, verb, name=name, actor=actor, **values)
    if rows:
        return bool(rows[0][0])
    known = [row[0] for row in await run(connection, NAMES, limit=NAMES_MAX + 1)]
    more = ", ..." if len(known) > NAMES_MAX else ""
    raise NotFound(f"there is no queue {name!r}; there are: {', '.join(known[:NAMES_MAX]) or 'none yet'}{more}")
