"""How long tasks waited to be started, by the clock of one process or by the database's."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from fleet.bench.result import percentile
from fleet.bench.stage import Connection

# `since` is taken before the load begins; its first tasks, until the worker has warmed up, do not count.
_PICK_UP = """
WITH load AS MATERIALIZED (
  SELECT started_at, created_at, run_at, min(created_at) OVER () AS first
  FROM fleet.task
  WHERE created_at >= %(since)s
), waited AS (
  SELECT extract(epoch FROM started_at - greatest(run_at, created_at))::float8 * 1000 AS milliseconds
  FROM load
  WHERE created_at >= first + %(warm_up)s
)
SELECT percentile_disc(ARRAY[0.5, 0.99, 1]) WITHIN GROUP (ORDER BY milliseconds)
FROM waited
"""

# Its own last batch is among them.
_BACKLOG = """
SELECT count(*)
FROM fleet.task
WHERE started_at > (SELECT max(created_at) FROM fleet.task)
"""


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the middle, the 99th hundredth and the longest of these times, in milliseconds."""
    if not seconds:
        raise RuntimeError("nothing was measured: run it for longer")
    return _named([1000 * value for value in (percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds))])


def pick_up(connection: Connection, since: datetime, warm_up: timedelta) -> dict[str, float]:
    """Return the same of start minus due time, of the tasks written since then, by the database's clock alone."""
    row = connection.execute(_PICK_UP, {"since": since, "warm_up": warm_up}).fetchone()
    if row is None or row[0] is None:
        raise RuntimeError("nothing was measured: run it for longer")
    return _named(row[0])


def backlog_at_end(connection: Connection) -> int:
    """Return how many tasks had not been started when the last one was written."""
    row = connection.execute(_BACKLOG).fetchone()
    return row[0] if row else 0


def _named(values: Sequence[float]) -> dict[str, float]:
    names = ("p50_milliseconds", "p99_milliseconds", "max_milliseconds")
    return dict(zip(names, values, strict=True))
