"""Work that keeps coming in while things are done to the workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from fleet.postgres.database import AsyncConnection
from tests.support import eventually, submit

NAMES = ("quick", "quick_once")


@dataclass
class Load:
    """`accepted`: their submission was committed, and the client was told so. `unknown`: it may have been."""

    accepted: list[UUID] = field(default_factory=list)
    unknown: list[UUID] = field(default_factory=list)

    async def more(self, count: int, seconds: float = 60) -> None:
        """Return when so many more have been accepted."""
        goal = len(self.accepted) + count

        async def probe() -> bool:
            return len(self.accepted) >= goal

        await eventually(probe, seconds)


@asynccontextmanager
async def load(url: str, *, milliseconds: int, every_seconds: float = 0.004) -> AsyncIterator[Load]:
    """Submit tasks, the one half repeatable and the other not, until the block is left; over any outage."""
    submitted = Load()
    running = asyncio.ensure_future(_submit(submitted, url, milliseconds, every_seconds))
    try:
        yield submitted
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if not running.cancelled():
        running.result()


async def _submit(submitted: Load, url: str, milliseconds: int, every_seconds: float) -> None:
    while True:
        try:
            async with await AsyncConnection.connect(url, autocommit=True) as connection:
                while True:
                    task = uuid7()
                    submitted.unknown.append(task)
                    name = NAMES[len(submitted.unknown + submitted.accepted) % 2]
                    await submit(
                        connection, id=task, name=name, args=f'{{"milliseconds": {milliseconds}}}', max_attempts=5
                    )
                    submitted.accepted.append(submitted.unknown.pop())
                    await asyncio.sleep(every_seconds)
        except psycopg.OperationalError:
            await asyncio.sleep(0.05)
