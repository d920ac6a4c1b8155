"""Cancel tasks: at once before they start; afterwards it is a request that the worker learns by its heartbeat."""

from collections.abc import Sequence
from uuid import UUID

from fleet.postgres.database import AsyncConnection, Statement, run
from fleet.task import State

# One statement with one CASE: two (cancel if QUEUED, else ask if RUNNING) would miss a task released in between.
# lease_id is set although it is NULL already: a CHECK is tested on the snapshot's version joined to the locked one,
# before the re-check, and must find every column that it names set from the locked one.
CANCEL = Statement("""
WITH held AS MATERIALIZED (
  SELECT id, state, attempt, lease_id
  FROM fleet.task
  WHERE id = ANY (:ids::uuid[])
  ORDER BY id
  FOR NO KEY UPDATE
), cancelled AS (
  UPDATE fleet.task
  SET state = CASE WHEN held.state = 'QUEUED' THEN 'CANCELLED' ELSE held.state END,
      lease_id = CASE WHEN held.state = 'QUEUED' THEN NULL ELSE held.lease_id END,
      finished_at = CASE WHEN held.state = 'QUEUED' THEN clock_timestamp() END,
      cancel_requested = true
  FROM held
  WHERE task.id = held.id AND held.state IN ('QUEUED', 'RUNNING')
), asked AS (
  INSERT INTO fleet.cancel_request (lease_id, task_id, attempt)
  SELECT lease_id, id, attempt
  FROM held
  WHERE state = 'RUNNING'
  ON CONFLICT DO NOTHING
), history AS (
  INSERT INTO fleet.audit (actor, action, subject)
  SELECT :actor::text, 'cancel', id::text
  FROM held
  WHERE state IN ('QUEUED', 'RUNNING')
)
SELECT id, CASE WHEN state = 'QUEUED' THEN 'CANCELLED' ELSE state END AS state, state IN ('QUEUED', 'RUNNING') AS changed
FROM held
""")

# A request is kept until its attempt is over, so that a heartbeat whose answer was lost brings it again.
FORGET = Statement("""
DELETE FROM fleet.cancel_request AS request
WHERE NOT EXISTS (
  SELECT FROM fleet.task
  WHERE task.id = request.task_id AND task.attempt = request.attempt AND task.state = 'RUNNING'
    AND task.lease_id = request.lease_id)
""")


async def cancel(connection: AsyncConnection, ids: Sequence[UUID], actor: str) -> dict[UUID, tuple[State, bool]]:
    """Cancel what has not started, ask for the rest; returns the tasks that exist, as (state now, whether we changed it).

    CANCELLED, True: it will not run. RUNNING, True: its worker is asked to stop it. A terminal state, False: too late.
    """
    rows = await run(connection, CANCEL, ids=list(ids), actor=actor)
    return {row[0]: (State(row[1]), row[2]) for row in rows}


async def forget(connection: AsyncConnection) -> None:
    """Delete requests whose attempt is over."""
    await run(connection, FORGET)
