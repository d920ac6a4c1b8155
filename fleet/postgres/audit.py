"""What an audit asks of a database at work: each question is one bounded statement in a READ ONLY transaction of its own.

Each statement judges one snapshot, so what it finds was there at one moment. No transaction lasts longer than a statement.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from fleet.postgres.database import Connection, Database, Row, Statement, run_sync

BATCH = 5000
FOUND_MAX = 100  # rows that one question answers
_LAST = UUID(int=2**128 - 1)

# A sweep follows a mark within moments; a lease that was cleared is looked at by nobody any more.
HELD_BY_ENDED = Statement("""
SELECT task.id::text,
  format('attempt %s runs under lease %s of %s, which is %s', task.attempt, lease.id, lease.worker, lease.state)
FROM fleet.task
JOIN fleet.lease ON lease.id = task.lease_id
WHERE task.state = 'RUNNING' AND lease.state IN ('REAPED', 'RELEASED')
  AND (lease.state = 'RELEASED' OR lease.cleared_at IS NOT NULL OR lease.expires_at < clock_timestamp() - lease.ttl)
ORDER BY task.id
LIMIT :found::int
""")

ORPHANS = Statement("""
SELECT task.id::text, format('attempt %s runs under lease %s, which is not on record', task.attempt, task.lease_id)
FROM fleet.task
WHERE task.state = 'RUNNING' AND NOT EXISTS (SELECT FROM fleet.lease WHERE lease.id = task.lease_id)
ORDER BY task.id
LIMIT :found::int
""")

# A witness needs a whole TTL of looking after it has come up; with a third one nobody is looking.
NOT_REAPED = Statement("""
SELECT lease.id::text,
  format('lease of %s on %s, pid %s, expired %s s ago and is still %s', lease.worker, lease.host, lease.pid,
    round(extract(epoch FROM clock_timestamp() - lease.expires_at)), lease.state)
FROM fleet.lease
WHERE lease.state IN ('LIVE', 'DRAINING') AND lease.expires_at < clock_timestamp() - 3 * lease.ttl
ORDER BY lease.expires_at
LIMIT :found::int
""")

# The names that tasks wait under are found one by one along the index.
UNSERVED = Statement("""
WITH RECURSIVE waiting AS (
  SELECT min(queue) AS name
  FROM fleet.task
  WHERE state = 'QUEUED'
  UNION ALL
  SELECT (SELECT min(task.queue) FROM fleet.task WHERE task.state = 'QUEUED' AND task.queue > waiting.name)
  FROM waiting
  WHERE waiting.name IS NOT NULL
)
SELECT waiting.name, format('a task has been due since %s, and no live worker serves its queue', due.run_at)
FROM waiting
CROSS JOIN LATERAL (
  SELECT min(task.run_at) AS run_at
  FROM fleet.task
  WHERE task.queue = waiting.name AND task.state = 'QUEUED'
) AS due
WHERE due.run_at < clock_timestamp() - interval '1 minute'
  AND NOT EXISTS (SELECT FROM fleet.queue WHERE queue.name = waiting.name AND queue.paused)
  AND NOT EXISTS (SELECT FROM fleet.lease
                  WHERE lease.state = 'LIVE' AND lease.expires_at > clock_timestamp()
                    AND waiting.name = ANY (lease.queues))
LIMIT :found::int
""")

# A task is kept for an hour at least after its end, and its key longer: a young key without its task is a task lost.
KEYS_WITHOUT_TASKS = Statement("""
SELECT submission.task_id::text,
  format('was accepted under the key %L at %s and is not there', submission.key, submission.created_at)
FROM fleet.submission
WHERE submission.created_at > clock_timestamp() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM fleet.task WHERE task.id = submission.task_id)
LIMIT :found::int
""")

# Rows go with time and counters do not: a counter may be more than its rows, never less. FAILED tasks that were put back
# or purged are counted still.
COUNTERS = Statement("""
WITH counted AS MATERIALIZED (
  SELECT name, queue, reason, sum(value) AS value
  FROM fleet.counter
  GROUP BY name, queue, reason
), found AS (
  SELECT 'dead_letters in queue ' || queue AS what, count(*) AS rows,
    (SELECT coalesce(sum(value), 0) FROM counted WHERE name = 'dead_letters' AND counted.queue = task.queue) AS value
  FROM fleet.task
  WHERE state = 'FAILED' AND resolved_at IS NULL
  GROUP BY queue
  UNION ALL
  SELECT 'lease_expirations', count(*), (SELECT coalesce(sum(value), 0) FROM counted WHERE name = 'lease_expirations')
  FROM fleet.lease
  WHERE state = 'REAPED'
  UNION ALL
  SELECT 'fence_rejections', count(*), (SELECT coalesce(sum(value), 0) FROM counted WHERE name = 'fence_rejections')
  FROM fleet.attempt
  WHERE late
)
SELECT what, format('%s are counted, and %s rows say that there were at least so many', value, rows)
FROM found
WHERE rows > value
LIMIT :found::int
""")

# The tasks before an id, the youngest first. The last row of the answer stands for the batch: the id to go on from.
TASKS = Statement("""
WITH looked AS MATERIALIZED (
  SELECT id, state, attempt, failures, losses, max_attempts, max_losses, finished_at, failure_code
  FROM fleet.task
  WHERE id < :before::uuid
  ORDER BY id DESC
  LIMIT :batch::int
), past AS MATERIALIZED (
  SELECT looked.*,
    looked.attempt - (looked.state IN ('SUCCEEDED', 'RUNNING'))::int AS ends,
    history.rows, history.last, history.errors, history.lost
  FROM looked
  CROSS JOIN LATERAL (
    SELECT count(*) AS rows, coalesce(max(attempt.attempt), 0) AS last,
      count(*) FILTER (WHERE attempt.outcome = 'error') AS errors,
      count(*) FILTER (WHERE attempt.outcome = 'lost') AS lost
    FROM fleet.attempt
    WHERE attempt.task_id = looked.id AND NOT attempt.late
  ) AS history
), found AS (
  SELECT id, 'attempts' AS kind,
    format('is %s in attempt %s; its history has %s rows up to attempt %s instead of %s', state, attempt, rows, last, ends)
      AS words
  FROM past
  WHERE rows <> ends OR last <> ends
  UNION ALL
  SELECT id, 'budgets',
    format('is %s with %s failures and %s losses of %s attempts and %s losses; its history has %s and %s', state, failures,
      losses, max_attempts, max_losses, errors, lost)
  FROM past
  WHERE failures > errors OR losses > lost OR losses > max_losses OR failures + losses > max_attempts
    OR (state = 'QUEUED' AND (losses >= max_losses OR failures + losses >= max_attempts))
  UNION ALL
  SELECT id, 'states', format('is %s, finished at %s, failure code %s', state, finished_at, failure_code)
  FROM past
  WHERE (finished_at IS NOT NULL) <> (state IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))
    OR (failure_code IS NOT NULL) <> (state = 'FAILED')
)
(SELECT id::text, kind, words, 0 AS looked FROM found LIMIT :found::int)
UNION ALL
(SELECT id::text, 'last', NULL, (SELECT count(*)::int FROM looked) FROM looked ORDER BY id LIMIT 1)
""")

HISTORY = Statement("""
WITH looked AS MATERIALIZED (
  SELECT task_id, attempt, late
  FROM fleet.attempt
  WHERE (task_id, attempt, late) < (:before::uuid, :attempt::int, :late::bool)
  ORDER BY task_id DESC, attempt DESC, late DESC
  LIMIT :batch::int
), found AS (
  SELECT task_id, format('has a row of attempt %s in the history, and is not there', attempt) AS words
  FROM looked
  WHERE NOT EXISTS (SELECT FROM fleet.task WHERE task.id = looked.task_id)
)
(SELECT task_id::text, words, NULL::int AS attempt, NULL::bool AS late, 0 AS looked FROM found LIMIT :found::int)
UNION ALL
(SELECT task_id::text, NULL, attempt, late, (SELECT count(*)::int FROM looked)
 FROM looked
 ORDER BY task_id, attempt, late
 LIMIT 1)
""")


class Found(NamedTuple):
    """What must not be: the id of a task, a lease or the name of a queue, and the facts."""

    kind: str
    subject: str
    words: str


@contextmanager
def visit(database: Database) -> Iterator[Connection]:
    """Lend a session for an audit. Raises psycopg.OperationalError."""
    with database.connect_sync("audit") as connection:
        yield connection


def ask(connection: Connection, statement: Statement, **values: object) -> list[Row]:
    """Run one question in a READ ONLY transaction of its own."""
    with connection.transaction():
        connection.execute("SET TRANSACTION READ ONLY")
        return run_sync(connection, statement, found=FOUND_MAX, **values)


def find(connection: Connection, statement: Statement) -> list[Found]:
    """Ask what can be told by one statement."""
    return [Found("", subject, words) for subject, words in ask(connection, statement)]


def walk_tasks(connection: Connection, most: int) -> tuple[int, list[Found]]:
    """Look at the youngest tasks, `most` at the most; return how many, and what was found."""
    before, count, found = str(_LAST), 0, []
    while count < most:
        batch = min(BATCH, most - count)
        *rows, last = ask(connection, TASKS, before=before, batch=batch) or [(None, "last", None, 0)]
        found += [Found(kind, subject, words) for subject, kind, words, _ in rows]
        count += last[3]
        if last[3] < batch:
            break
        before = last[0]
    return count, found


def walk_history(connection: Connection, most: int) -> tuple[int, list[Found]]:
    """The same for the rows of the history."""
    place: tuple[object, object, object] = (str(_LAST), 0, False)
    count, found = 0, []
    while count < most:
        batch = min(BATCH, most - count)
        before, attempt, late = place
        answer = ask(connection, HISTORY, before=before, attempt=attempt, late=late, batch=batch)
        *rows, last = answer or [(None, None, None, None, 0)]
        found += [Found("history", row[0], row[1]) for row in rows]
        count += last[4]
        if last[4] < batch:
            break
        place = (last[0], last[2], last[3])
    return count, found
