"""Measure one system: the same procedure for all, run by the interpreter that has the system installed.

So it knows nothing of fleet. Orders: side (the module whose `System` is driven), url, slots, and `phase`:
- `enqueue`: make the tables; submit one after another for single_seconds; then in chunks until there are `tasks`;
- `drain`: work off such a backlog, work_ms a task, and count for `seconds` after a warm-up;
- `pick_up`: make the tables; submit a task every 30 ms to an idle worker in the same event loop, `tasks` of them.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import uvloop

CHUNK = 10000
CHUNKS_MIN = 10
WARM_UP_SECONDS = 1.0
WARM_UP_TASKS = 30
EVERY_SECONDS = 0.03
PATIENCE_SECONDS = 60
POLL_SECONDS = 0.02
NEARLY_ALL = 0.97  # a window ends when so much of the backlog is gone: the rest would be no full load

Handle = Callable[[int], Awaitable[None]]
Orders = dict[str, Any]
Figures = dict[str, float]


class System(Protocol):
    """What a `*_side.py` offers. Its tasks carry their number and some 200 bytes."""

    async def open(self, *, install: bool) -> None:
        """Connect; make the tables if asked to."""

    async def submit(self, number: int) -> None:
        """Submit one task, and return when it is committed."""

    async def submit_many(self, numbers: Sequence[int]) -> None:
        """Do the same for many, the fastest way there is."""

    async def work(self, handle: Handle, *, busy: bool) -> None:
        """Await `handle(number)` for every task; end only when cancelled. `busy`: many are waiting; else single ones come."""


async def enqueue(system: System, orders: Orders) -> Figures:
    """Return tasks written per second, one by one and in chunks."""
    await system.open(install=True)
    number, began = 0, time.perf_counter()
    while time.perf_counter() - began < orders["single_seconds"]:
        await system.submit(number)
        number += 1
    single = number / (time.perf_counter() - began)
    chunks = max(CHUNKS_MIN, (orders["tasks"] - number) // CHUNK)
    began = time.perf_counter()
    for _ in range(chunks):
        await system.submit_many(range(number, number + CHUNK))
        number += CHUNK
    return {
        "single_enqueue_tasks_per_second": single,
        "batch_enqueue_rows_per_second": chunks * CHUNK / (time.perf_counter() - began),
        "backlog_tasks": number,
    }


async def drain(system: System, orders: Orders) -> Figures:
    """Return handlers ended per second. The window is cut short where the backlog would not last."""
    await system.open(install=False)
    seconds, ended = orders["work_ms"] / 1000, 0

    async def handle(number: int) -> None:
        nonlocal ended
        await asyncio.sleep(seconds)
        ended += 1

    worker = asyncio.create_task(system.work(handle, busy=True))
    await until(lambda: ended > 0, worker)
    await asyncio.sleep(WARM_UP_SECONDS)
    before, began = ended, time.perf_counter()
    deadline, enough = began + orders["seconds"], orders["tasks"] * NEARLY_ALL
    await until(lambda: ended >= enough or time.perf_counter() >= deadline, worker, orders["seconds"])
    done, window = ended - before, time.perf_counter() - began
    if not done or window < orders["seconds"] / 3:
        raise RuntimeError(f"no measurement: {done} tasks in {window:.2f} s, {ended} of {orders['tasks']} in all")
    return {"drain_tasks_per_second": done / window, "drain_window_seconds": window}


async def pick_up(system: System, orders: Orders) -> Figures:
    """Return how long tasks took from before they were submitted until their handler ran: two percentiles."""
    await system.open(install=True)
    sent: dict[int, float] = {}
    waited: dict[int, float] = {}

    async def handle(number: int) -> None:
        waited.setdefault(number, time.perf_counter() - sent[number])

    worker = asyncio.create_task(system.work(handle, busy=False))
    for number in range(WARM_UP_TASKS + orders["tasks"]):
        if number == WARM_UP_TASKS:
            await until(lambda: len(waited) == WARM_UP_TASKS, worker)
        sent[number] = time.perf_counter()
        await system.submit(number)
        await asyncio.sleep(EVERY_SECONDS)
    await until(lambda: len(waited) == len(sent), worker)
    ordered = sorted(seconds * 1000 for number, seconds in waited.items() if number >= WARM_UP_TASKS)
    return {"pick_up_p50_ms": at(ordered, 0.5), "pick_up_p99_ms": at(ordered, 0.99)}


async def until(holds: Callable[[], bool], worker: "asyncio.Task[None]", more_seconds: float = 0) -> None:
    """Look again and again. Raises what ended the worker, or RuntimeError when nothing came of it."""
    deadline = time.monotonic() + PATIENCE_SECONDS + more_seconds
    while not holds():
        if worker.done():
            worker.result()
            raise RuntimeError("the worker ended by itself")
        if time.monotonic() > deadline:
            raise RuntimeError("waited in vain for the worker")
        await asyncio.sleep(POLL_SECONDS)


def at(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of all does not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def main(orders: Orders) -> None:
    """Do as ordered, print the figures, and leave at once: how a system drains in good order is not measured."""
    system: System = importlib.import_module(orders["side"]).System(orders["url"], orders["slots"])
    phases = {"enqueue": enqueue, "drain": drain, "pick_up": pick_up}
    print(json.dumps(await phases[orders["phase"]](system, orders)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
