"""The test's side of its handlers: each reports here when it starts and then waits to be told what to do."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support import PATIENCE_SECONDS, eventually


class Actor:
    """One running handler."""

    def __init__(self, who: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.task_id = UUID(who["task"])
        self.attempt = int(who["attempt"])
        self.pid = int(who["pid"])
        self.text = str(who["text"])
        self._reader = reader
        self._writer = writer

    def tell(self, order: str) -> None:
        """Send an order, and do not wait: what ends a handler has no answer."""
        self._writer.write(order.encode() + b"\n")

    async def order(self, order: str) -> None:
        """Send an order, and return when it was done (or, where it holds the thread, begun)."""
        self.tell(order)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await self._reader.readline() == b"ok\n", f"{order!r} was not obeyed"

    async def gone(self) -> None:
        """Return when the handler has ended, in whatever way."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                assert await self._reader.read() == b""
            except ConnectionResetError:
                return

    def close(self) -> None:
        self._writer.close()


class Stage:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.actors: list[Actor] = []
        self.then: Callable[[Actor], None] = lambda actor: None  # what to do with each that comes in

    async def arrival(self, task_id: UUID, attempt: int = 1, seconds: float = PATIENCE_SECONDS) -> Actor:
        """Return the handler of this attempt as soon as it has started."""

        async def probe() -> Actor | None:
            found = [actor for actor in self.actors if (actor.task_id, actor.attempt) == (task_id, attempt)]
            return found[0] if found else None

        found = await eventually(probe, seconds)
        assert found is not None
        return found

    def starts(self, task_id: UUID) -> int:
        return sum(actor.task_id == task_id for actor in self.actors)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if line:
            actor = Actor(json.loads(line), reader, writer)
            self.actors.append(actor)
            self.then(actor)


@asynccontextmanager
async def open_stage(path: Path) -> AsyncIterator[Stage]:
    stage = Stage(path)
    server = await asyncio.start_unix_server(stage._enter, str(path))
    try:
        yield stage
    finally:
        server.close()
        for actor in stage.actors:
            actor.close()
