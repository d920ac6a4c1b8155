"""The one periodic loop, and the only place in a worker that sleeps."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import psycopg

from fleet.config import Settings
from fleet.errors import first_line
from fleet.events import DatabaseTrouble, Events
from fleet.retry import BackOff

JITTER = 0.1


async def every(period: timedelta, step: Callable[[], Awaitable[object]], events: Events, name: str) -> None:
    """Run `step` again and again, about `period` apart, for ever. The database's troubles are told and outlived."""
    while True:
        await asyncio.sleep(jittered(period))
        await attempt(step, events, name)


async def attempt(step: Callable[[], Awaitable[object]], events: Events, name: str) -> bool:
    """Run `step` once; False, and an event, where the database did not let it."""
    try:
        await step()
    except psycopg.Error as error:
        events.emit(trouble(name, error))
        return False
    return True


async def pause(seconds: float, wake: asyncio.Event | None = None) -> None:
    """Wait so long, or until `wake` is set."""
    if wake is None:
        await asyncio.sleep(seconds)
        return
    try:
        async with asyncio.timeout(seconds):
            await wake.wait()
    except TimeoutError:
        pass


def reconnecting(settings: Settings) -> BackOff:
    """How long to wait between two tries to reach the database: short, since tasks wait too once it is back."""
    return BackOff(settings.backoff_base, settings.ttl / 15)


async def back_off(backoff: BackOff, tries: int, wake: asyncio.Event | None = None) -> None:
    """Wait before the next try, after so many in vain."""
    await pause(backoff.delay(tries, random.random()).total_seconds(), wake)


def jittered(period: timedelta) -> float:
    """Return the period in seconds, up to a tenth shorter, so that processes started together drift apart."""
    return period.total_seconds() * (1 - JITTER * random.random())


def trouble(operation: str, error: BaseException) -> DatabaseTrouble:
    """Describe a database error in one line."""
    return DatabaseTrouble(operation, first_line(error), error.sqlstate if isinstance(error, psycopg.Error) else None)
