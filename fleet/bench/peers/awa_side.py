"""awa: a core in Rust, handlers in Python. Batches go by COPY straight into its queue storage, its fastest way in.

A busy worker has two claimers, as its documentation proposes for a hot queue: they drained half as much again as one, and
four did not. An idle one picks up sooner with one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import awa

QUEUE = "bench"
PAD = "x" * 200
CONNECTIONS = 20
CLAIMERS_BUSY = 2


@dataclass
class Noop:
    i: int
    pad: str


class System:
    def __init__(self, url: str, slots: int) -> None:
        self.slots = slots
        self.client = awa.AsyncClient(url, max_connections=CONNECTIONS)

    async def open(self, *, install: bool) -> None:
        if install:
            await self.client.migrate()
            await self.client.install_queue_storage(schema="awa", reset=True)

    async def submit(self, number: int) -> None:
        await self.client.insert(Noop(number, PAD), queue=QUEUE)

    async def submit_many(self, numbers: Sequence[int]) -> None:
        await self.client.enqueue_many_copy([Noop(number, PAD) for number in numbers], queue=QUEUE)

    async def work(self, handle: Callable[[int], Awaitable[None]], *, busy: bool) -> None:
        async def noop(job: Any) -> None:
            await handle(job.args.i)

        self.client.task(Noop, queue=QUEUE)(noop)
        await self.client.start([{"name": QUEUE, "max_workers": self.slots, "claimers": CLAIMERS_BUSY if busy else 1}])
        await asyncio.Event().wait()
