"""End attempts: succeed, or go back, fail, cancel. Fenced, in batches, and safe to send again when the answer was lost."""

from collections.abc import Sequence
from uuid import UUID

from fleet.lease import Lease
from fleet.postgres.database import AsyncConnection, Row, Statement, array, id_array, run, text_array
from fleet.task import Errored, Outcome, Settlement, State, Succeeded, Verdict, outcome_name

# "held" finds each row by its primary key alone, in the order of ids, so no two batches deadlock; the fence is then tested
# on the locked, newest version, which nobody else can change any more. SKIP LOCKED: one row in somebody's open transaction
# must not hold up the others. Only what was not settled is answered. There is no join but by an index, so that one plan
# is good for every size of batch and table.
SUCCEED = Statement("""
WITH input AS MATERIALIZED (
  SELECT given.id, given.attempt, given.result
  FROM unnest(:ids::uuid[], :attempts::int[], :results::jsonb[]) AS given (id, attempt, result)
  ORDER BY given.id
), held AS MATERIALIZED (
  SELECT input.id, input.attempt, input.result, found.state, found.attempt AS attempt_now,
    coalesce(found.state = 'RUNNING' AND found.attempt = input.attempt AND found.lease_id = :lease::uuid, false) AS ours
  FROM input
  LEFT JOIN LATERAL (
    SELECT task.state, task.attempt, task.lease_id
    FROM fleet.task
    WHERE task.id = input.id
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS found ON true
), settled AS (
  UPDATE fleet.task
  SET state = 'SUCCEEDED', lease_id = NULL, finished_at = clock_timestamp(), result = held.result
  FROM held
  WHERE task.id = held.id AND held.ours
)
SELECT held.id, held.attempt,
  CASE WHEN held.state = 'SUCCEEDED' AND held.attempt_now = held.attempt THEN 'already'
       WHEN held.state IS NULL AND EXISTS (SELECT FROM fleet.task WHERE task.id = held.id) THEN 'busy'
       ELSE 'fenced' END AS verdict,
  'SUCCEEDED' AS state
FROM held
WHERE NOT held.ours
""")

# The history row is written by the same statement: after a lost answer it alone can tell whether this lease ended the
# attempt or a reaper did. A released task keeps its place, behind the cursors: the queue's generation tells them.
GIVE_BACK = Statement("""
WITH input AS MATERIALIZED (
  SELECT given.id, given.attempt, given.outcome, given.delay, given.code, given.reason
  FROM unnest(:ids::uuid[], :attempts::int[], :outcomes::text[], :delays::interval[], :codes::text[], :reasons::text[])
    AS given (id, attempt, outcome, delay, code, reason)
  ORDER BY given.id
), held AS MATERIALIZED (
  SELECT input.*, found.state AS state_before, found.queue,
    coalesce(found.state = 'RUNNING' AND found.attempt = input.attempt AND found.lease_id = :lease::uuid, false) AS ours,
    CASE WHEN input.outcome = 'cancelled' THEN 'CANCELLED'
         WHEN input.outcome = 'error'
              AND (input.delay IS NULL OR found.failures + found.losses + 1 >= found.max_attempts) THEN 'FAILED'
         WHEN found.cancel_requested THEN 'CANCELLED'
         ELSE 'QUEUED' END AS state
  FROM input
  LEFT JOIN LATERAL (
    SELECT task.state, task.attempt, task.lease_id, task.queue, task.cancel_requested, task.failures, task.losses,
      task.max_attempts
    FROM fleet.task
    WHERE task.id = input.id
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS found ON true
), judged AS MATERIALIZED (
  SELECT id, queue, attempt, outcome, delay, code, reason, state
  FROM held
  WHERE ours
), settled AS (
  UPDATE fleet.task
  SET state = judged.state, lease_id = NULL,
      failures = task.failures + (judged.outcome = 'error')::int,
      run_at = CASE WHEN judged.state = 'QUEUED' AND judged.outcome = 'error'
                    THEN clock_timestamp() + judged.delay ELSE task.run_at END,
      finished_at = CASE WHEN judged.state <> 'QUEUED' THEN clock_timestamp() END,
      failure_code = CASE WHEN judged.state = 'FAILED' THEN judged.code END,
      failure_reason = CASE WHEN judged.state = 'FAILED' THEN judged.reason END
  FROM judged
  WHERE task.id = judged.id
), history AS (
  INSERT INTO fleet.attempt (task_id, attempt, lease_id, outcome, detail)
  SELECT judged.id, judged.attempt, :lease::uuid, judged.outcome, judged.reason
  FROM judged
  ORDER BY judged.id
), put_back AS MATERIALIZED (
  SELECT queue.name
  FROM fleet.queue
  WHERE queue.name IN (SELECT queue FROM judged WHERE state = 'QUEUED' AND outcome = 'released')
  ORDER BY queue.name
  FOR NO KEY UPDATE
), announced AS (
  UPDATE fleet.queue
  SET generation = queue.generation + 1
  FROM put_back
  WHERE queue.name = put_back.name
  RETURNING pg_notify('fleet', left(queue.name, 1000))
), counted AS (
  INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
  SELECT :lease::uuid, 'dead_letters', queue, code, count(*)
  FROM judged
  WHERE state = 'FAILED'
  GROUP BY queue, code
  ORDER BY queue, code
  ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
)
SELECT held.id, held.attempt,
  CASE WHEN held.ours THEN 'settled'
       WHEN EXISTS (SELECT FROM fleet.attempt
                    WHERE attempt.task_id = held.id AND attempt.attempt = held.attempt AND NOT attempt.late
                      AND attempt.lease_id = :lease::uuid AND attempt.outcome = held.outcome) THEN 'already'
       WHEN held.state_before IS NULL AND EXISTS (SELECT FROM fleet.task WHERE task.id = held.id) THEN 'busy'
       ELSE 'fenced' END AS verdict,
  CASE WHEN held.ours THEN held.state ELSE held.state_before END AS state
FROM held
""")

RECORD_LATE = Statement("""
WITH input AS MATERIALIZED (
  SELECT DISTINCT ON (given.id, given.attempt) given.id, given.attempt, given.outcome, given.detail, given.queue
  FROM unnest(:ids::uuid[], :attempts::int[], :outcomes::text[], :details::text[], :queues::text[])
    AS given (id, attempt, outcome, detail, queue)
  ORDER BY given.id, given.attempt
), late AS (
  INSERT INTO fleet.attempt (task_id, attempt, late, lease_id, outcome, detail)
  SELECT id, attempt, true, :lease::uuid, outcome, detail
  FROM input
  ORDER BY id, attempt
  ON CONFLICT DO NOTHING
  RETURNING task_id, attempt
)
INSERT INTO fleet.counter AS total (writer, name, queue, reason, value)
SELECT :lease::uuid, 'fence_rejections', input.queue, '', count(*)
FROM late
JOIN input ON input.id = late.task_id AND input.attempt = late.attempt
GROUP BY input.queue
ORDER BY input.queue
ON CONFLICT (writer, name, queue, reason) DO UPDATE SET value = total.value + EXCLUDED.value
""")


class Answers(dict[tuple[UUID, int], tuple[Verdict, State]]):
    """The verdict on each (task id, attempt), and where the task is now. What is not in it was settled, and succeeded."""

    def __missing__(self, key: tuple[UUID, int]) -> tuple[Verdict, State]:
        return Verdict.SETTLED, State.SUCCEEDED


async def succeed(connection: AsyncConnection, lease: Lease, settlements: Sequence[Settlement]) -> Answers:
    """RUNNING → SUCCEEDED with the results, for attempts held under this lease. Answers only what was not settled.

    FENCED where the attempt is not this lease's any more: nothing was changed. Raises psycopg.DataError when a result
    cannot be stored; then nothing was written.
    """
    rows = await run(
        connection,
        SUCCEED,
        lease=lease.id,
        ids=id_array(settlement.task.id for settlement in settlements),
        attempts=array(settlement.task.attempt for settlement in settlements),
        results=text_array(_result(settlement.outcome) for settlement in settlements),
    )
    return _answers(rows)


async def give_back(connection: AsyncConnection, lease: Lease, settlements: Sequence[Settlement]) -> Answers:
    """RUNNING → QUEUED, FAILED or CANCELLED, as each outcome, the budget and a request to cancel decide. Answers each.

    Believe FENCED on a repeat only after one more try: the history row of the first try may be newer than the
    snapshot of the second.
    """
    outcomes = [settlement.outcome for settlement in settlements]
    rows = await run(
        connection,
        GIVE_BACK,
        lease=lease.id,
        ids=id_array(settlement.task.id for settlement in settlements),
        attempts=array(settlement.task.attempt for settlement in settlements),
        outcomes=[outcome_name(outcome) for outcome in outcomes],
        delays=[outcome.delay if isinstance(outcome, Errored) else None for outcome in outcomes],
        codes=[outcome.code.value if isinstance(outcome, Errored) else None for outcome in outcomes],
        reasons=[_reason(outcome) for outcome in outcomes],
    )
    return _answers(rows)


async def record_late(connection: AsyncConnection, lease: Lease, settlements: Sequence[Settlement]) -> None:
    """Keep refused reports in the tasks' history, and count them. Safe to repeat."""
    await run(
        connection,
        RECORD_LATE,
        lease=lease.id,
        ids=id_array(settlement.task.id for settlement in settlements),
        attempts=array(settlement.task.attempt for settlement in settlements),
        outcomes=[outcome_name(settlement.outcome) for settlement in settlements],
        details=[_reason(settlement.outcome) for settlement in settlements],
        queues=[settlement.task.queue for settlement in settlements],
    )


def _answers(rows: Sequence[Row]) -> Answers:
    return Answers({(row[0], row[1]): (Verdict(row[2]), State(row[3] or State.QUEUED)) for row in rows})


def _result(outcome: Outcome) -> str:
    assert isinstance(outcome, Succeeded)  # noqa: S101 - the settler sorts them
    return outcome.result


def _reason(outcome: Outcome) -> str | None:
    return None if isinstance(outcome, Succeeded) else outcome.reason
