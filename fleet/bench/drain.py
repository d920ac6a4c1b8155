"""How fast one worker drains a backlog: `DB=postgresql://… python -m fleet.bench.drain [tasks=60000] [slots=256]`.

The handler is async and sleeps WORK seconds (default 0.001). The database must be empty: the schema is made here.
A figure alone says little: `python -m fleet.bench` gives the ratio to a bare loop in the same run.
"""

import asyncio
import os
import sys
import time

import uvloop

from fleet import Fleet, Settings
from fleet.events import Event, TaskSettled
from fleet.postgres import migrate
from fleet.worker.runner import spare_the_collector

WORK = float(os.environ.get("WORK", "0.001"))


async def drain(url: str, tasks: int, slots: int) -> tuple[float, float, float]:
    """Return tasks submitted and tasks drained, each per second, and this process's CPU seconds for each drained."""
    app = Fleet(url, settings=Settings(slots=slots))
    migrate.upgrade(app.database)

    @app.task(idempotent=True)
    async def noop(i: int, pad: str) -> None:
        await asyncio.sleep(WORK)

    worker = app.worker()
    done, settled = asyncio.Event(), 0

    def count(event: Event) -> None:
        nonlocal settled
        if isinstance(event, TaskSettled):
            settled += 1
            if settled == tasks:
                done.set()

    worker.events.subscribe(count)
    spare_the_collector()  # as `fleet worker run` does
    async with app:
        began = time.perf_counter()
        await app.submit_many(noop, ({"i": i, "pad": "x" * 200} for i in range(tasks)))
        submitted = tasks / (time.perf_counter() - began)
        began, spent = time.perf_counter(), time.process_time()
        async with worker:
            await done.wait()
            drained = tasks / (time.perf_counter() - began)
            cost = (time.process_time() - spent) / tasks
    return submitted, drained, cost


if __name__ == "__main__":
    given = [int(value) for value in sys.argv[1:]]
    how_many, slots_used = given + [60_000, 256][len(given) :]
    enqueue, rate, cpu = uvloop.run(drain(os.environ["DB"], how_many, slots_used))
    print(f"enqueue {enqueue:.0f}")
    print(f"drain {rate:.0f}")
    print(f"microseconds-of-CPU-for-each-task {cpu * 1e6:.0f}", file=sys.stderr)
