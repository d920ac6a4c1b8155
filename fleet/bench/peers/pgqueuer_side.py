"""pgqueuer, through asyncpg. Its tables are durable, which is its default.

Submitting has a connection of its own: a pooled one is reset after every use, a round trip more. A busy worker has a pool, so
that it logs what has ended while it takes more; an idle one picks up sooner with a single connection. Not the handlers at
once are bounded, only the batch: a bound makes its query slower. What the handler needs stands at the front of the payload,
which spares it JSON.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

NAME = "noop"
PAD = b"x" * 200


class System:
    def __init__(self, url: str, slots: int) -> None:
        self.url, self.slots = url, slots

    async def open(self, *, install: bool) -> None:
        self.queries = Queries(AsyncpgDriver(await asyncpg.connect(self.url)))
        if install:
            await self.queries.install()

    async def submit(self, number: int) -> None:
        await self.queries.enqueue(NAME, b"%d " % number + PAD)

    async def submit_many(self, numbers: Sequence[int]) -> None:
        payloads = [b"%d " % number + PAD for number in numbers]
        await self.queries.enqueue([NAME] * len(payloads), payloads, [0] * len(payloads))

    async def work(self, handle: Callable[[int], Awaitable[None]], *, busy: bool) -> None:
        async def noop(job: Any) -> None:
            await handle(int(job.payload.partition(b" ")[0]))

        if busy:
            driver = AsyncpgPoolDriver(await asyncpg.create_pool(self.url, min_size=4, max_size=20))
        else:
            driver = AsyncpgDriver(await asyncpg.connect(self.url))
        queuer = PgQueuer(driver)
        queuer.entrypoint(NAME)(noop)
        await queuer.run(batch_size=self.slots)
