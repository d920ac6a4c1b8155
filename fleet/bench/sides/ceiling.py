"""The ceiling: a bare loop that claims, runs an async handler and settles in batches, and can do nothing else.

Its table has a queue, a priority and a holder, as any such table has; but there are no leases, retries, events or checks.
It shows what Python, psycopg and PostgreSQL allow on the machine at hand, so that a figure can be given as a ratio to it.
Orders: url, tasks, slots, work_ms.
"""

import asyncio
import json
import sys
import time

import psycopg
import uvloop
from pydantic import TypeAdapter
from typing_extensions import TypedDict

SCHEMA = """
DROP SCHEMA IF EXISTS ceiling CASCADE;
CREATE SCHEMA ceiling;
CREATE TABLE ceiling.task (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue text NOT NULL DEFAULT 'default',
  name text NOT NULL,
  args jsonb NOT NULL,
  priority smallint NOT NULL DEFAULT 0,
  state text NOT NULL DEFAULT 'QUEUED',
  run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempt int NOT NULL DEFAULT 0,
  lease_id bigint,
  started_at timestamptz,
  finished_at timestamptz,
  result jsonb
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ON ceiling.task (queue, priority, run_at, id) WHERE state = 'QUEUED';
"""
CLAIM = """
WITH ready AS MATERIALIZED (
  SELECT id
  FROM ceiling.task
  WHERE queue = 'default' AND priority = 0 AND state = 'QUEUED' AND run_at <= statement_timestamp()
    AND (run_at, id) > (%s::timestamptz, %s::bigint)
  ORDER BY run_at, id
  LIMIT %s
  FOR UPDATE SKIP LOCKED
)
UPDATE ceiling.task
SET state = 'RUNNING', lease_id = 1, attempt = attempt + 1, started_at = clock_timestamp()
FROM ready
WHERE task.id = ready.id
RETURNING task.id, task.name, task.args::text, task.attempt, task.run_at
"""
SETTLE = """
UPDATE ceiling.task
SET state = 'SUCCEEDED', finished_at = clock_timestamp(), lease_id = NULL
FROM unnest(%s::bigint[]) AS done (id)
WHERE task.id = done.id AND task.state || '' = 'RUNNING' AND task.lease_id + 0 = 1
"""


class Arguments(TypedDict):
    i: int
    pad: str


read = TypeAdapter(Arguments).validator.validate_json


def fill(url: str, tasks: int) -> float:
    """Make the table and return rows written, per second."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SCHEMA)
        began = time.perf_counter()
        with connection.cursor() as cursor, cursor.copy("COPY ceiling.task (name, args) FROM STDIN") as copy:
            for i in range(tasks):
                copy.write_row(("work", f'{{"i":{i},"pad":"{"x" * 200}"}}'))
        rate = tasks / (time.perf_counter() - began)
        connection.execute("VACUUM (ANALYZE) ceiling.task")
        connection.execute("CHECKPOINT")
        return rate


class Loop:
    """Claims while at least half of the slots are free; settles every 2 ms."""

    def __init__(self, tasks: int, slots: int, work_ms: float) -> None:
        self.tasks, self.slots, self.work_seconds = tasks, slots, work_ms / 1000
        self.running = self.settled = 0
        self.waiting: list[int] = []
        self.room, self.finished = asyncio.Event(), asyncio.Event()
        self.kept: set[asyncio.Task[None]] = set()

    async def run(self, number: int, args: str) -> None:
        await self.handler(**read(args))
        self.running -= 1
        self.waiting.append(number)
        self.finished.set()
        if self.running < self.slots // 2:
            self.room.set()

    async def handler(self, i: int, pad: str) -> None:
        if self.work_seconds:
            await asyncio.sleep(self.work_seconds)

    async def settle(self, connection: "psycopg.AsyncConnection[tuple[object, ...]]") -> None:
        while self.settled < self.tasks:
            await self.finished.wait()
            self.finished.clear()
            await asyncio.sleep(0.002)
            batch, self.waiting = self.waiting, []
            if batch:
                await connection.execute(SETTLE, (batch,), prepare=True)
                self.settled += len(batch)

    async def drain(self, url: str) -> float:
        """Return tasks done, per second."""
        claiming = await psycopg.AsyncConnection.connect(url, autocommit=True)
        settling = await psycopg.AsyncConnection.connect(url, autocommit=True)
        began = time.perf_counter()
        settler = asyncio.create_task(self.settle(settling))
        cursor, last, claimed = claiming.cursor(binary=True), ("-infinity", 0), 0
        while claimed < self.tasks:
            free = self.slots - self.running
            if free < self.slots // 2:
                self.room.clear()
                await self.room.wait()
                continue
            await cursor.execute(CLAIM, (*last, free), prepare=True)
            rows = await cursor.fetchall()
            claimed += len(rows)
            self.running += len(rows)
            last = max((row[4], row[0]) for row in rows)
            for number, _, args, _, _ in rows:
                task = asyncio.create_task(self.run(number, args))
                self.kept.add(task)
                task.add_done_callback(self.kept.discard)
        await settler
        rate = self.tasks / (time.perf_counter() - began)
        await claiming.close()
        await settling.close()
        return rate


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    enqueued = fill(orders["url"], orders["tasks"])
    drained = uvloop.run(Loop(orders["tasks"], orders["slots"], orders["work_ms"]).drain(orders["url"]))
    print(json.dumps({"rows_per_second": enqueued, "tasks_per_second": drained}))
