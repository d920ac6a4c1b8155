"""A worker that drains a backlog while, in its own loop as in any worker, old tasks are pruned; or are not.

It is measured from the worker's start until the backlog or what is to be pruned is at its end.
Orders: url, tasks, slots, pruning.
"""

import asyncio
import json
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta

import uvloop
from psycopg.rows import dict_row
from uuid_utils.compat import uuid7

from fleet.bench.latency import spread
from fleet.bench.tasks import app
from fleet.config import Settings
from fleet.events import Event, Events, TasksClaimed, TaskSettled
from fleet.postgres import prune
from fleet.postgres.database import AsyncConnection, Database
from fleet.worker.process import Worker
from fleet.worker.runner import spare_the_collector

RETENTION = timedelta(days=7)
FOR_EVER = timedelta(days=3650)  # the worker's own maintenance prunes nothing: both sides are to be alike
_NOW = "SELECT clock_timestamp()"
_FIGURES = """
SELECT (count(*) / extract(epoch FROM max(finished_at) - min(started_at)))::float8 AS tasks_per_second,
  (SELECT coalesce(sum(value), 0) / extract(epoch FROM %(until)s::timestamptz - %(since)s::timestamptz)
   FROM fleet.counter
   WHERE name = 'purged')::float8 AS pruned_rows_per_second,
  extract(epoch FROM %(until)s::timestamptz - %(since)s::timestamptz)::float8 AS measured_seconds
FROM fleet.task
WHERE started_at >= %(since)s AND finished_at <= %(until)s
"""


class Watch:
    """Counts what is settled, and keeps how many seconds each claim took."""

    def __init__(self, tasks: int) -> None:
        self.claims: list[float] = []
        self.drained = asyncio.Event()
        self._open = tasks

    def __call__(self, event: Event) -> None:
        if isinstance(event, TaskSettled):
            self._open -= 1
            if not self._open:
                self.drained.set()
        elif isinstance(event, TasksClaimed):
            self.claims.append(event.seconds)


async def measure(*, url: str, tasks: int, slots: int, pruning: bool) -> dict[str, float]:
    """Return tasks per second, pruned rows per second, and the spread of the claims in milliseconds."""
    database = Database(url, Settings())
    watch, events = Watch(tasks), Events()
    events.subscribe(watch)
    spare_the_collector()
    async with await database.connect("bench") as asking, await database.connect("bench") as other:
        since = await _now(asking)
        async with Worker(database, app.handlers, Settings(slots=slots, retention=FOR_EVER), events=events):
            ends: list[asyncio.Task[object]] = [asyncio.create_task(watch.drained.wait())]
            if pruning:
                ends.append(asyncio.create_task(_prune_all(other)))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            claims, until = spread(watch.claims), await _now(asking)
            async with asking.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(_FIGURES, {"since": since, "until": until})
                figures = await cursor.fetchone() or {}
            for end in ends:
                await _stop(end)
    return figures | {f"claim_{name}": value for name, value in claims.items()}


async def _prune_all(connection: AsyncConnection) -> None:
    """Prune as maintenance does, until nothing is left to prune."""
    while await prune.prune(connection, uuid7(), round(time.time() * 1000), RETENTION):
        pass


async def _now(connection: AsyncConnection) -> datetime:
    row = await (await connection.execute(_NOW)).fetchone()
    assert row is not None  # noqa: S101 - it always answers
    moment: datetime = row[0]
    return moment


async def _stop(task: "asyncio.Task[object]") -> None:
    """End what is not done yet; raise what it has raised."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(**json.loads(sys.argv[1])))))
