"""What every endpoint works with: the app, its database, and what the server was told."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncEngine

from fleet.app import Fleet
from fleet.postgres import migrate
from fleet.postgres.database import AsyncConnection

T = TypeVar("T")
_READERS_MAX = 4


class Api:
    """One app as it is served. Its connections are opened when first needed."""

    def __init__(self, app: Fleet) -> None:
        self.app = app
        self._engine: AsyncEngine | None = None

    async def ask(self, question: Select[Any]) -> list[dict[str, Any]]:
        """Run one question and return its rows by column."""
        async with self._reader().connect() as connection:
            return [dict(row) for row in (await connection.execute(question)).mappings()]

    async def act(self, verb: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run one verb on a pooled connection."""
        async with self.app.client.connection() as connection:
            return await verb(connection)

    async def schema(self) -> str:
        """Return the schema's revision. Raises SchemaMismatch."""
        return await migrate.check_async(self._reader())

    async def close(self) -> None:
        """Close all connections, the app's too."""
        if self._engine is not None:
            await self._engine.dispose()
            self._engine = None
        await self.app.close()

    def _reader(self) -> AsyncEngine:
        if self._engine is None:
            self._engine = self.app.database.async_engine("http", size=_READERS_MAX)
        return self._engine
