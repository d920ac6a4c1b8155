"""What the whole fleet is at, in one bounded statement: one snapshot, so that no figure is told from another moment."""

from collections.abc import Sequence
from typing import NamedTuple

from fleet.postgres.database import Connection, Statement, run_sync

QUEUES_MAX = 1000  # so many queues are told of, the first by name
ROWS_MAX = 10_000  # so many ready tasks are counted, shared among the queues; as many delayed, running and dead ones
COUNT_MIN = 200  # but so many of each queue, however many there are

# The names that tasks wait under are found one by one along the index. Every count ends at a LIMIT, and walks one lane after
# another, so that it never meets what it does not count. Counters are read here too: a fold moves them, and is seen whole
# or not at all, so that none ever goes down.
# A session of autovacuum holds back nobody, hence is not told of; others' transactions are seen by who may see them.
MEASURE = Statement("""
WITH RECURSIVE waiting AS (
  (SELECT task.queue FROM fleet.task WHERE task.state = 'QUEUED' ORDER BY task.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT task.queue FROM fleet.task WHERE task.state = 'QUEUED' AND task.queue > waiting.queue
          ORDER BY task.queue LIMIT 1)
  FROM waiting
  WHERE waiting.queue IS NOT NULL
), counted AS MATERIALIZED (
  SELECT name, queue, reason, sum(value)::float8 AS value
  FROM fleet.counter
  GROUP BY name, queue, reason
), every_queue AS MATERIALIZED (
  SELECT name FROM fleet.queue
  UNION
  SELECT queue FROM counted WHERE queue <> ''
  UNION
  (SELECT queue FROM waiting WHERE queue IS NOT NULL LIMIT :queues_max::int)
), known AS MATERIALIZED (
  SELECT every_queue.name, coalesce(queue.paused, false) AS paused
  FROM every_queue
  LEFT JOIN fleet.queue ON queue.name = every_queue.name
  ORDER BY every_queue.name
  LIMIT :queues_max::int
), bound AS MATERIALIZED (
  SELECT greatest(:count_min::int, :rows_max::int / greatest(count(*), 1))::int AS rows
  FROM known
), backlog AS MATERIALIZED (
  SELECT known.name,
    (SELECT count(*)
     FROM (SELECT
           FROM generate_series(0, 9) AS lane (priority)
           CROSS JOIN LATERAL (
             SELECT
             FROM fleet.task
             WHERE task.queue = known.name AND task.priority = lane.priority::smallint AND task.state = 'QUEUED'
               AND task.run_at <= statement_timestamp()
             OFFSET 0
           ) AS due
           LIMIT (SELECT rows FROM bound)) AS found) AS ready,
    (SELECT count(*)
     FROM (SELECT
           FROM generate_series(0, 9) AS lane (priority)
           CROSS JOIN LATERAL (
             SELECT
             FROM fleet.task
             WHERE task.queue = known.name AND task.priority = lane.priority::smallint AND task.state = 'QUEUED'
               AND task.run_at > statement_timestamp()
             OFFSET 0
           ) AS later
           LIMIT (SELECT rows FROM bound)) AS found) AS delayed,
    (SELECT min(first.run_at)
     FROM generate_series(0, 9) AS lane (priority)
     CROSS JOIN LATERAL (
       SELECT task.run_at
       FROM fleet.task
       WHERE task.queue = known.name AND task.priority = lane.priority::smallint AND task.state = 'QUEUED'
         AND task.run_at <= statement_timestamp()
       ORDER BY task.run_at
       LIMIT 1
     ) AS first) AS oldest
  FROM known
), running AS MATERIALIZED (
  SELECT held.queue, count(*) AS tasks
  FROM (SELECT task.queue FROM fleet.task WHERE task.state = 'RUNNING' LIMIT :rows_max::int) AS held
  GROUP BY held.queue
), dead AS MATERIALIZED (
  SELECT known.name AS queue, letter.failure_code AS reason, count(*) AS tasks
  FROM known
  CROSS JOIN LATERAL (
    SELECT task.failure_code
    FROM fleet.task
    WHERE task.queue = known.name AND task.state = 'FAILED' AND task.resolved_at IS NULL
    LIMIT (SELECT rows FROM bound)
  ) AS letter
  GROUP BY known.name, letter.failure_code
), held AS MATERIALIZED (
  SELECT state, queues, expires_at <= clock_timestamp() AS overdue
  FROM fleet.lease
  WHERE cleared_at IS NULL AND state IN ('LIVE', 'DRAINING')
), oldest AS (
  SELECT xact_start AS began
  FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
  UNION ALL
  SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
)
SELECT 'queue' AS about, name AS queue, NULL AS label, 0::float8 AS value FROM known
UNION ALL
SELECT 'paused', name, NULL, paused::int FROM known
UNION ALL
SELECT 'omitted', NULL, NULL, (SELECT count(*) FROM every_queue) - (SELECT count(*) FROM known)
UNION ALL
SELECT 'limit', NULL, NULL, rows FROM bound
UNION ALL
SELECT 'tasks', name, 'ready', ready FROM backlog
UNION ALL
SELECT 'tasks', name, 'delayed', delayed FROM backlog
UNION ALL
SELECT 'tasks', queue, 'running', tasks FROM running JOIN known ON known.name = running.queue
UNION ALL
SELECT 'age', name, NULL, coalesce(greatest(extract(epoch FROM clock_timestamp() - oldest)::float8, 0), 0) FROM backlog
UNION ALL
SELECT 'dead', queue, reason, tasks FROM dead
UNION ALL
SELECT 'workers', NULL, state, count(*) FROM held WHERE NOT overdue GROUP BY state
UNION ALL
SELECT 'serving', served.queue, NULL, count(*)
FROM held
CROSS JOIN LATERAL unnest(held.queues) AS served (queue)
JOIN known ON known.name = served.queue
WHERE held.state = 'LIVE' AND NOT held.overdue
GROUP BY served.queue
UNION ALL
SELECT 'overdue', NULL, NULL, count(*) FROM held WHERE overdue
UNION ALL
SELECT counted.name, counted.queue, counted.reason, counted.value
FROM counted
LEFT JOIN known ON known.name = counted.queue
WHERE counted.queue = '' OR known.name IS NOT NULL
UNION ALL
SELECT 'oldest', NULL, NULL, coalesce(max(extract(epoch FROM clock_timestamp() - began)::float8), 0) FROM oldest
UNION ALL
SELECT 'dead_tuples', NULL, NULL, pg_stat_get_dead_tuples('fleet.task'::regclass)
""")


class Figure(NamedTuple):
    """One figure: what it is about, of which queue, which state or reason of it, and how much."""

    about: str
    queue: str | None
    label: str | None
    value: float


def measure(connection: Connection) -> Sequence[Figure]:
    """Return every figure of this moment. Known queues that have nothing are there with zero, or as `queue` alone."""
    rows = run_sync(connection, MEASURE, queues_max=QUEUES_MAX, rows_max=ROWS_MAX, count_min=COUNT_MIN)
    return [Figure(*row) for row in rows]
