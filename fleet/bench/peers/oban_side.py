"""Oban for Python, which needs 3.12 or newer.

Its connections are in autocommit: it opens transactions itself where it needs them, and the others cost two round trips more.
Submitting has a connection of its own, with a transaction around a batch, which saves a flush for each row.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
from oban import Oban, worker
from oban.schema import install as make_tables
from psycopg_pool import AsyncConnectionPool

QUEUE = "bench"
PAD = "x" * 200


@worker(queue=QUEUE)
class Noop:
    handle: Any = None  # the class is made by Oban: this is the way in for what is to be done

    async def process(self, job: Any) -> None:
        await Noop.handle(job.args["i"])


class System:
    def __init__(self, url: str, slots: int) -> None:
        self.url, self.slots = url, slots

    async def open(self, *, install: bool) -> None:
        pool = AsyncConnectionPool(self.url, min_size=4, max_size=20, open=False, kwargs={"autocommit": True})
        await pool.open()
        if install:
            await make_tables(pool)
        self.connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        self.oban = Oban(pool=pool, queues={QUEUE: self.slots})

    async def submit(self, number: int) -> None:
        await self.oban.enqueue(_job(number), conn=self.connection)

    async def submit_many(self, numbers: Sequence[int]) -> None:
        async with self.connection.transaction():
            await self.oban.enqueue_many([_job(number) for number in numbers], conn=self.connection)

    async def work(self, handle: Callable[[int], Awaitable[None]], *, busy: bool) -> None:
        Noop.handle = staticmethod(handle)
        async with self.oban:
            await asyncio.Event().wait()


def _job(number: int) -> Any:
    new: Any = getattr(Noop, "new")  # noqa: B009 - the decorator adds it, which a type checker cannot know
    return new({"i": number, "pad": PAD})
