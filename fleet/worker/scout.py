"""Looks for tasks that were left behind the cursors, where that takes too long for a claim to do it on its way.

That is so while another session holds an old snapshot, and everything claimed since then lies in the way.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import psycopg

from fleet.config import Settings
from fleet.events import Events
from fleet.postgres import claim
from fleet.postgres.database import AsyncConnection, Database
from fleet.worker.lanes import Lanes
from fleet.worker.loop import back_off, reconnecting, trouble


class Scout:
    """Has a connection of its own once it is needed. `owed` is set when there may be something to look at."""

    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        names: Sequence[str],
        settings: Settings,
        events: Events,
        found: Callable[[], None],
    ) -> None:
        self.owed = asyncio.Event()
        self._database = database
        self._lanes = lanes
        self._names = names
        self._events = events
        self._found = found
        self._backoff = reconnecting(settings)
        self._connection: AsyncConnection | None = None

    async def run(self) -> None:
        """Look whenever it is owed, for ever."""
        tries = 0
        while True:
            await self.owed.wait()
            self.owed.clear()
            try:
                await self.look()
                tries = 0
            except psycopg.Error as error:
                self._events.emit(trouble("look back", error))
                await self.close()
                await back_off(self._backoff, tries)
                tries += 1

    async def look(self) -> None:
        """Look once at every lane that is due, and tell the claimer where to begin again."""
        sent = time.monotonic()
        lanes, generations = self._lanes.dear(sent), self._lanes.generations
        if not lanes:
            return
        if self._connection is None:
            self._connection = await self._database.connect("scout")
            sent = time.monotonic()
        first = await claim.look_back(self._connection, lanes, self._names)
        now = time.monotonic()
        self._lanes.scouted(lanes, first, generations=generations, cost=now - sent, now=now)
        if first:
            self._found()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
