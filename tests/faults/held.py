"""An app whose handlers hold on: what may be run twice, and what must not; and one that holds the event loop itself."""

import asyncio
import time

from fleet import Fleet

app = Fleet()


@app.task(idempotent=True)
async def again() -> None:
    await asyncio.Event().wait()


@app.task
async def once() -> None:
    await asyncio.Event().wait()


@app.task(idempotent=True)
async def nothing() -> None: ...


@app.task(idempotent=True)
async def stall(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - as a careless author would
