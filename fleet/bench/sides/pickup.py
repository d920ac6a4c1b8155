"""From submit to the handler's first line, where an app, its worker and the submitter share one event loop.

Orders: url, slots, work_ms, settle_seconds; then either tasks and every_ms, for a worker that sleeps in between, or rate,
seconds, batch_ms and batch_max, for one that is busy: there the time runs from the call that submits the batch.
"""

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from fleet import Fleet
from fleet.app import Task
from fleet.bench.latency import spread
from fleet.bench.sides.offer import offer
from fleet.bench.tasks import PAD
from fleet.config import Settings

_PATIENCE_SECONDS = 30


class Watch:
    """When each task was submitted and when its handler began, in seconds of the process's own clock."""

    def __init__(self) -> None:
        self.sent: dict[int, float] = {}
        self.started: dict[int, float] = {}
        self._arrived = asyncio.Event()

    def sending(self, numbers: range) -> None:
        self.sent.update(dict.fromkeys(numbers, time.perf_counter()))

    def starts(self, number: int) -> None:
        self.started[number] = time.perf_counter()
        self._arrived.set()

    async def complete(self) -> None:
        """Return when every task that was submitted has been started."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while len(self.started) < len(self.sent):
                self._arrived.clear()
                await self._arrived.wait()

    def waited(self, settle_seconds: float = 0.0) -> list[float]:
        """Return how long each task waited, but for those submitted in the first seconds."""
        begin = min(self.sent.values()) + settle_seconds
        return [self.started[number] - sent for number, sent in self.sent.items() if sent >= begin]


async def main(*, url: str, slots: int, work_ms: float, settle_seconds: float, **how: Any) -> dict[str, float]:
    """Run the worker and submit to it."""
    watch, app = Watch(), Fleet(url, settings=Settings(slots=slots))

    @app.task(idempotent=True)
    async def work(i: int, pad: str) -> None:
        watch.starts(i)
        if work_ms:
            await asyncio.sleep(work_ms / 1000)

    async with app, app.worker():
        if "rate" in how:
            return await busy(app, work, watch, settle_seconds, how)
        await asyncio.sleep(settle_seconds)
        return await idle(work, watch, **how)


async def idle(task: Task[[int, str], None], watch: Watch, tasks: int, every_ms: float) -> dict[str, float]:
    """Submit one task at a time, and let the worker fall asleep."""
    for i in range(tasks):
        watch.sending(range(i, i + 1))
        await task.submit(i, PAD)
        await asyncio.sleep(every_ms / 1000)
    await watch.complete()
    return spread(watch.waited())


async def busy(
    app: Fleet, task: Task[[int, str], None], watch: Watch, settle_seconds: float, load: dict[str, Any]
) -> dict[str, float]:
    """Submit at a rate, and leave the first seconds out."""
    seconds = load.pop("seconds") + settle_seconds
    count, took = await offer(app, task, seconds=seconds, sending=watch.sending, **load)
    await watch.complete()
    return {"offered_tasks_per_second": count / took} | spread(watch.waited(settle_seconds))


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(**json.loads(sys.argv[1])))))
