"""Hears notifications on a connection of its own. Optional: polling is the truth, this only makes it quick."""

from collections.abc import Callable, Collection

import psycopg

from fleet.config import Settings
from fleet.events import Events
from fleet.postgres import listen
from fleet.postgres.database import Database
from fleet.worker.loop import back_off, reconnecting, trouble


class Listener:
    """Calls `wake` whenever one of the queues is announced, and once after each new connection."""

    def __init__(
        self, database: Database, queues: Collection[str], settings: Settings, events: Events, wake: Callable[[], None]
    ) -> None:
        self._up = False
        self._database = database.listening
        self._queues = {queue[:1000] for queue in queues}
        self._settings = settings
        self._events = events
        self._wake = wake
        self._backoff = reconnecting(settings)

    def up(self) -> bool:
        """Whether notifications are coming in."""
        return self._up

    async def run(self) -> None:
        """Listen, for ever; after a break listen again and wake at once, for what was missed."""
        tries = 0
        while True:
            try:
                connection = await self._database.connect("listen")
                try:
                    await listen.listen(connection)
                    self._up, tries = True, 0
                    self._wake()
                    async for notification in connection.notifies():
                        if notification.payload in self._queues:
                            self._wake()
                finally:
                    # Its own `async with` would roll back first, be cancelled once more in that, and leave it open.
                    await connection.close()
            except psycopg.Error as error:
                self._events.emit(trouble("listen", error))
            finally:
                self._up = False
                self._wake()  # nobody will call while this is down: sleep no longer than without it
            await back_off(self._backoff, tries)
            tries += 1
