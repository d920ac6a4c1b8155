"""The worker of the long run: every kind of handler, each telling the world outside what it did."""

import asyncio
import os
import time
from typing import Any

from fleet import Context, Fail, Fleet, Retry
from fleet.testing.sink import report

app = Fleet()
elsewhere = Fleet()  # of tasks that no worker here has a handler for
APP = "tests.chaos.program:app"


async def told(context: Context, arguments: dict[str, Any]) -> None:
    """The effect: once the sink has numbered it, it has happened."""
    await asyncio.to_thread(report, context, **arguments)


@app.task(idempotent=True, max_attempts=20, max_losses=10)
async def quick(context: Context, number: int, text: str) -> int:
    await told(context, {"number": number, "text": text})
    return number


@app.task
async def once(context: Context, number: int, milliseconds: int) -> int:
    await told(context, {"number": number, "milliseconds": milliseconds})
    await asyncio.sleep(milliseconds / 1000)
    return number


@app.task(idempotent=True, max_attempts=20, max_losses=10)
async def slow(context: Context, number: int, milliseconds: int) -> int:
    await asyncio.sleep(milliseconds / 1000)
    await told(context, {"number": number, "milliseconds": milliseconds})
    return number


@app.task
def once_in_thread(context: Context, number: int, milliseconds: int) -> int:
    report(context, number=number, milliseconds=milliseconds)
    time.sleep(milliseconds / 1000)
    return number


@app.task(idempotent=True, max_attempts=6)
async def flaky(context: Context, number: int) -> int:
    await told(context, {"number": number})
    if context.attempt < 1 + number % 4:
        raise RuntimeError(f"attempt {context.attempt} of {number} fails")
    return number


@app.task(max_attempts=6)
async def asks_again(context: Context, number: int) -> int:
    """Not idempotent: it says itself that it may be run once more."""
    if context.attempt == 1:
        raise Retry("not ready yet", after=0.2)
    await told(context, {"number": number})
    return number


@app.task(idempotent=True, queue="urgent")
async def gives_up(context: Context, number: int) -> None:
    await told(context, {"number": number})
    raise Fail(f"{number} cannot be done")


@app.task(idempotent=True, max_losses=2)
async def poison(context: Context, number: int) -> None:
    """Ends the whole process, every time."""
    await told(context, {"number": number})
    os._exit(9)


@elsewhere.task
async def nobody(number: int) -> None:
    raise AssertionError(f"nobody can run {number}")
