"""A worker under a load that comes from elsewhere, while, as in the worker whose turn it is, old tasks are pruned; or not.

It is measured until what is to be pruned is at its end, `seconds` at most. Orders: url, slots, seconds, pruning.
"""

import asyncio
import json
import sys
import time
from contextlib import suppress
from datetime import timedelta

import uvloop
from uuid_utils.compat import uuid7

from fleet.bench.latency import spread
from fleet.bench.tasks import app
from fleet.config import Settings
from fleet.events import Event, Events, TasksClaimed
from fleet.postgres import prune
from fleet.postgres.database import Database
from fleet.worker.process import Worker
from fleet.worker.pruner import rest
from fleet.worker.runner import spare_the_collector

RETENTION = timedelta(days=7)
FOR_EVER = timedelta(days=3650)  # the worker's own pruner finds nothing: both sides are to be alike
_WARM_UP_SECONDS = 2.0
_PURGED = "SELECT coalesce(sum(value), 0)::float8 FROM fleet.counter WHERE name = 'purged'"


async def measure(*, url: str, slots: int, seconds: float, pruning: bool) -> dict[str, float]:
    """Return the spread of the claims in milliseconds, pruned rows per second, and for how long that went on."""
    database, events, claims = Database(url, Settings()), Events(), list[float]()

    def watch(event: Event) -> None:
        if isinstance(event, TasksClaimed) and event.count:
            claims.append(event.seconds)

    events.subscribe(watch)
    spare_the_collector()
    async with await database.connect("prune") as connection, await database.connect("bench") as asking:
        async with Worker(database, app.handlers, Settings(slots=slots, retention=FOR_EVER), events=events):
            await asyncio.sleep(_WARM_UP_SECONDS)
            claims.clear()
            began = time.monotonic()
            if pruning:
                pass_ = prune.prune(connection, uuid7(), round(time.time() * 1000), RETENTION, rest)
                with suppress(TimeoutError):
                    await asyncio.wait_for(pass_, seconds)
            else:
                await asyncio.sleep(seconds)
            took, measured = time.monotonic() - began, spread(claims)
        row = await (await asking.execute(_PURGED)).fetchone()
    purged = row[0] if row else 0.0
    return {
        **{f"claim_{name}": value for name, value in measured.items()},
        "claims": float(len(claims)),
        "pruned_rows": purged,
        "pruned_rows_per_second": purged / took,
        "measured_seconds": took,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(**json.loads(sys.argv[1])))))
