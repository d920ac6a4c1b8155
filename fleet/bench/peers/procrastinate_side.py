"""Procrastinate, through psycopg. Its connections are in autocommit: each of its steps is one statement.

By default each would be a transaction of three round trips; it then drained less. Deleting what has succeeded, an option of
its own, gained nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from procrastinate import App, PsycopgConnector

QUEUE = "bench"
PAD = "x" * 200


class System:
    def __init__(self, url: str, slots: int) -> None:
        self.slots = slots
        self.handle: Callable[[int], Awaitable[None]] | None = None
        self.app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=20, configure=_autocommit))
        self.task = self.app.task(queue=QUEUE, name="noop")(self._noop)

    async def open(self, *, install: bool) -> None:
        await self.app.open_async()
        if install:
            await self.app.schema_manager.apply_schema_async()

    async def submit(self, number: int) -> None:
        await self.task.defer_async(i=number, pad=PAD)

    async def submit_many(self, numbers: Sequence[int]) -> None:
        await self.task.batch_defer_async(*[{"i": number, "pad": PAD} for number in numbers])

    async def work(self, handle: Callable[[int], Awaitable[None]], *, busy: bool) -> None:
        self.handle = handle
        await self.app.run_worker_async(queues=[QUEUE], concurrency=self.slots, install_signal_handlers=False)

    async def _noop(self, i: int, pad: str) -> None:
        if self.handle is not None:
            await self.handle(i)


async def _autocommit(connection: Any) -> None:
    await connection.set_autocommit(True)
