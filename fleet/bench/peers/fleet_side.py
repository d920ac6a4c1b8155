"""fleet itself, as its users see it. As `fleet worker run` does, it spares the garbage collector.

It submits through its own pool: that is its only way, while peers may be given a connection.
"""

import os
from collections.abc import Awaitable, Callable, Sequence

from fleet import Fleet, Settings
from fleet.worker.runner import spare_the_collector

PAD = "x" * 200


class System:
    def __init__(self, url: str, slots: int) -> None:
        self.app = Fleet(url, settings=Settings.from_environment(os.environ, slots=slots))
        self.handle: Callable[[int], Awaitable[None]] | None = None

        async def noop(i: int, pad: str) -> None:
            if self.handle is not None:
                await self.handle(i)

        self.task = self.app.task(idempotent=True)(noop)

    async def open(self, *, install: bool) -> None:
        """Do nothing: the tables were made by the migrations already."""

    async def submit(self, number: int) -> None:
        await self.task.submit(i=number, pad=PAD)

    async def submit_many(self, numbers: Sequence[int]) -> None:
        await self.app.submit_many(self.task, [{"i": number, "pad": PAD} for number in numbers])

    async def work(self, handle: Callable[[int], Awaitable[None]], *, busy: bool) -> None:
        self.handle = handle
        spare_the_collector()
        async with self.app.worker() as worker:
            await worker.wait()
