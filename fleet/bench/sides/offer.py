"""A producer that submits at a steady rate, as a service does that gathers its tasks into small batches.

Orders: url, rate (tasks per second), seconds, batch_ms, batch_max. What is due is reckoned from the time that has really
passed: after a delay it catches up.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

from fleet import Fleet
from fleet.app import Task
from fleet.bench.tasks import PAD, work


async def offer(
    app: Fleet,
    task: Task[..., Any],
    *,
    rate: float,
    seconds: float,
    batch_ms: float,
    batch_max: int,
    sending: Callable[[range], None] = lambda numbers: None,
) -> tuple[int, float]:
    """Submit for so long; return the number of tasks and the seconds it took. `sending` is told before each batch."""
    period = min(batch_ms / 1000, batch_max / rate)
    began = now = time.perf_counter()
    count = 0
    while now < began + seconds:
        due = min(int((now - began) * rate) - count, batch_max)
        if due > 0:
            numbers = range(count, count + due)
            sending(numbers)
            await app.submit_many(task, [{"i": i, "pad": PAD} for i in numbers])
            count += due
        spent = time.perf_counter() - now
        await asyncio.sleep(max(0.0, period - spent))
        now = time.perf_counter()
    return count, now - began


async def main(*, url: str, **load: Any) -> dict[str, float]:
    """Submit the usual task."""
    work.app.database_url = url
    async with work.app as app:
        count, seconds = await offer(app, work, **load)
    return {"tasks": count, "offered_tasks_per_second": count / seconds}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(**json.loads(sys.argv[1])))))
