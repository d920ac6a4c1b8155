"""Pause and resume a queue. The claim joins its row, so a pause holds from its commit on."""

from fleet.postgres.database import AsyncConnection, Statement, run

PAUSE = Statement("""
WITH paused AS (
  INSERT INTO fleet.queue (name, paused)
  VALUES (:name::text, true)
  ON CONFLICT (name) DO UPDATE SET paused = true WHERE NOT queue.paused
  RETURNING name
), history AS (
  INSERT INTO fleet.audit (actor, action, subject)
  SELECT :actor::text, 'pause', name
  FROM paused
)
SELECT name FROM paused
""")

# What came in during the pause lies behind the cursors: the generation tells the claimers to look from the head.
RESUME = Statement("""
WITH resumed AS (
  UPDATE fleet.queue
  SET paused = false, generation = generation + 1
  WHERE name = :name::text AND paused
  RETURNING name
), history AS (
  INSERT INTO fleet.audit (actor, action, subject)
  SELECT :actor::text, 'resume', name
  FROM resumed
)
SELECT name, pg_notify('fleet', left(name, 1000)) FROM resumed
""")


async def pause(connection: AsyncConnection, name: str, actor: str) -> bool:
    """Let nobody claim from this queue; what runs goes on. False where it was paused already."""
    return bool(await run(connection, PAUSE, name=name, actor=actor))


async def resume(connection: AsyncConnection, name: str, actor: str) -> bool:
    """Let it be claimed from again. False where it was not paused."""
    return bool(await run(connection, RESUME, name=name, actor=actor))
