"""An app that looks at another database for a while: the one of a test."""

import asyncio
import threading
from datetime import timedelta
from types import TracebackType

from fleet.app import Fleet
from fleet.config import Settings
from fleet.postgres.database import Database

TTL = timedelta(seconds=2)


class Pointed:
    """Points an app to a database from when it is made until `restore`, or until its block, of either kind, ends.

    `async with` also closes the connections that the block has opened in its event loop.
    """

    def __init__(self, app: Fleet, database_url: str, settings: Settings | None = None) -> None:
        self.app = app
        self._before = (app._database, app.settings, app._client)  # noqa: SLF001 - what `use` replaces
        settings = settings or app.settings.changed(ttl=TTL)
        app.use(Database(database_url, settings), settings)

    def restore(self) -> None:
        """Let the app be as it was before."""
        self.app._database, self.app.settings, self.app._client = self._before  # noqa: SLF001

    def __enter__(self) -> Fleet:
        return self.app

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if self.app._client is not None:  # noqa: SLF001 - asking for `client` would make one
            # Plain code has no event loop, and must not get one for this: so in a thread.
            closing = threading.Thread(target=asyncio.run, args=(self.app.close(),), name="fleet close")
            closing.start()
            closing.join()
        self.restore()

    async def __aenter__(self) -> Fleet:
        return self.app

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        await self.app.close()
        self.restore()
