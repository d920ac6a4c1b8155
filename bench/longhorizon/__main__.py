"""`python -m bench.longhorizon`: produce, work and print samples until SIGTERM. Logs go to stderr."""

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial

import uvloop

from fleet import Fleet, Settings, logs
from fleet.events import Events
from fleet.postgres import migrate
from fleet.postgres.database import Database
from fleet.worker.runner import spare_the_collector

from .gauges import Gauges
from .orders import Orders, read
from .outage import persist
from .producer import Producer
from .sampler import describe, sample, watch_depth

QUEUE = "long_horizon"
DRAIN = timedelta(seconds=1)  # a handler that takes longer is stopped, and its task handed back
PATIENCE_SECONDS = 4.0  # after SIGTERM; the harness grants 5


async def main(orders: Orders) -> None:
    """Serve until SIGTERM or SIGINT. What cannot be handed back in time goes to others when the lease has run out."""
    gauges, loop = Gauges(), asyncio.get_running_loop()
    serving = asyncio.create_task(_serve(orders, gauges))

    def end() -> None:
        if not serving.cancelling():
            serving.cancel()
            loop.call_later(PATIENCE_SECONDS, os._exit, 0)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    with suppress(asyncio.CancelledError):
        await serving
    sys.stderr.write(f"enqueued {gauges.enqueued}, completed {gauges.completed}\n")


async def _serve(orders: Orders, gauges: Gauges) -> None:
    """Do everything, for ever; cancelled, drain. The database may be away at any time, at the beginning too."""
    settings = Settings.from_environment(os.environ, slots=orders.slots, drain_timeout=DRAIN)
    app = Fleet(orders.database_url, settings=settings, queue=QUEUE)

    @app.task(idempotent=True)
    async def work(produced_at: float, batch: str, number: int, padding: str) -> None:
        gauges.started += 1
        gauges.latencies.add((time.time() - produced_at) * 1000)
        if orders.work_seconds:
            await asyncio.sleep(orders.work_seconds)

    async def join() -> None:
        events = Events()
        logs.subscribe(events)
        events.subscribe(gauges.notice)
        await stack.enter_async_context(app.worker(events=events))

    describe(orders, await persist(partial(asyncio.to_thread, _migrate, app.database)))
    async with app, AsyncExitStack() as stack:
        await persist(join)
        async with asyncio.TaskGroup() as group:
            group.create_task(sample(orders, gauges))
            group.create_task(watch_depth(app.client, QUEUE, work.handler.priority, gauges))
            group.create_task(Producer(app, work, orders, gauges).run())


def _migrate(database: Database) -> str:
    """Bring the schema up to date and return its revision."""
    migrate.upgrade(database)
    return migrate.check(database)


if __name__ == "__main__":
    logs.configure("console", "warning")
    spare_the_collector()
    uvloop.run(main(read(os.environ)))
