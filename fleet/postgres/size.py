"""How large the tables are, and what could be pruned now. Read-only and bounded."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.postgres.database import AsyncConnection, Statement, run

LOOKED_MAX = 100_000  # the oldest tasks are looked at so far and no further

# Rows are what vacuum and analyze have reckoned last; nobody has counted them.
TABLES = Statement("""
SELECT relname::text AS name,
  CASE WHEN reltuples < 0 THEN NULL ELSE reltuples::bigint END AS rows,
  coalesce(pg_stat_get_dead_tuples(oid), 0) AS dead,
  pg_relation_size(oid) AS table_bytes,
  pg_indexes_size(oid) AS index_bytes,
  CASE WHEN reltoastrelid = 0 THEN 0 ELSE pg_total_relation_size(reltoastrelid) END AS toast_bytes
FROM pg_class
WHERE relnamespace = 'fleet'::regnamespace AND relkind = 'r'
ORDER BY pg_total_relation_size(oid) DESC, relname
""")

OLDEST = Statement("""
WITH met AS MATERIALIZED (
  SELECT id, queue, state, finished_at, resolved_at
  FROM fleet.task
  ORDER BY id
  LIMIT :looked_max::int
), finished AS (
  SELECT met.finished_at,
    (met.state IN ('SUCCEEDED', 'CANCELLED') OR (met.state = 'FAILED' AND met.resolved_at IS NOT NULL))
      AND met.finished_at < clock_timestamp() - coalesce(queue.retention, :retention::interval) AS prunable
  FROM met
  LEFT JOIN fleet.queue ON queue.name = met.queue
  WHERE met.finished_at IS NOT NULL
)
SELECT (SELECT count(*) FROM met) AS looked, min(finished_at) AS oldest, count(*) FILTER (WHERE prunable) AS prunable
FROM finished
""")


@dataclass(frozen=True, slots=True)
class Table:
    """One table: `rows` is an estimate, None where nobody has made one yet; `dead` are rows that vacuum will remove."""

    name: str
    rows: int | None
    dead: int
    table_bytes: int
    index_bytes: int
    toast_bytes: int


@dataclass(frozen=True, slots=True)
class Oldest:
    """What was found among the oldest tasks: when the first of them ended, and how many could be pruned now."""

    looked: int
    finished_at: datetime | None
    prunable: int


async def tables(connection: AsyncConnection) -> list[Table]:
    """Return fleet's tables, the largest first."""
    return [Table(*row) for row in await run(connection, TABLES)]


async def oldest(connection: AsyncConnection, retention: timedelta) -> Oldest:
    """Look at the oldest LOOKED_MAX tasks. `retention` is that of queues without a rule of their own."""
    rows = await run(connection, OLDEST, retention=retention, looked_max=LOOKED_MAX)
    return Oldest(*rows[0])
