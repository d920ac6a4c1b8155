"""How fast tasks are claimed: the statement alone, on one connection, with a worker's cursors and nothing else beside it.

The tasks are settled afterwards, outside of what is measured. Orders: url, tasks, batch.
"""

import json
import os
import sys
import time
from datetime import timedelta

import uvloop
from uuid_utils.compat import uuid7

from fleet.bench.latency import spread
from fleet.bench.tasks import app
from fleet.config import Settings
from fleet.lease import Lease
from fleet.postgres import claim, heartbeat, settle
from fleet.postgres.database import AsyncConnection, Database
from fleet.task import ClaimedTask, Settlement, Succeeded
from fleet.worker.lanes import Lanes

TTL = timedelta(hours=1)  # nobody renews it
QUEUE = "default"


async def measure(url: str, tasks: int, batch: int) -> dict[str, float]:
    """Claim so many tasks in batches; return tasks per second and the slowest claims' milliseconds."""
    database = Database(url, Settings())
    lease = Lease(uuid7(), "bench", TTL)
    with database.connect_sync("bench") as connection:
        heartbeat.register(connection, lease, heartbeat.Identity("bench", "", os.getpid(), "", (QUEUE,), batch))
    async with await database.connect("bench") as claiming:
        claimed, seconds = await _claim(claiming, lease, tasks, batch)
        for first in range(0, len(claimed), batch):
            ended = [Settlement(task, Succeeded("null")) for task in claimed[first : first + batch]]
            await settle.succeed(claiming, lease, ended)
        await heartbeat.drain(claiming, lease.id)
        await heartbeat.close(claiming, lease)
    return {
        "tasks_per_second": len(claimed) / sum(seconds),
        **spread(seconds),
    }


async def _claim(
    connection: AsyncConnection, lease: Lease, tasks: int, batch: int
) -> tuple[list[ClaimedTask], list[float]]:
    """Claim as a worker does; return the tasks, and how many seconds each statement took."""
    lanes, flags = Lanes([QUEUE]), {name: handler.idempotent for name, handler in app.handlers.items()}
    taken: list[ClaimedTask] = []
    seconds: list[float] = []
    while len(taken) < tasks:
        sent = time.monotonic()
        order = lanes.order(sent)
        claimed = await claim.claim(connection, lease, order, flags, batch)
        now = time.monotonic()
        if claimed is None or len(claimed.tasks) < batch:
            raise RuntimeError(f"after {len(taken)} of {tasks} tasks a claim did not bring {batch} more")
        lanes.learn(
            order,
            claimed.tasks,
            full=True,
            seen=claimed.seen,
            generations=claimed.generations,
            cost=now - sent,
            now=now,
        )
        taken += claimed.tasks
        seconds.append(now - sent)
    return taken, seconds


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(**json.loads(sys.argv[1])))))
