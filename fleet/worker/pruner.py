"""Forgets what has been kept long enough: one worker for all, on a connection of its own, and slowly."""

import time
from collections.abc import Callable
from uuid import UUID

from fleet.config import Settings
from fleet.events import Events
from fleet.postgres import prune
from fleet.postgres.database import Database
from fleet.worker.loop import attempt, jittered, pause

PASS_EVERY = 120  # reap periods: every ten minutes with a TTL of 30 s
RESTS = 3  # times as long as a statement took, until the next one


class Pruner:
    """Takes a pass now and then, where it is this worker's turn."""

    def __init__(self, database: Database, settings: Settings, events: Events, *, me: Callable[[], UUID]) -> None:
        self._database = database
        self._settings = settings
        self._events = events
        self._me = me

    async def run(self) -> None:
        """Take a pass soon, and then again and again, for ever."""
        await pause(jittered(self._settings.reap_every))
        while True:
            await attempt(self.step, self._events, "prune")
            await pause(jittered(self._settings.reap_every * PASS_EVERY))

    async def step(self) -> int:
        """Take one pass; return how many tasks were deleted."""
        async with await self._database.connect("prune") as connection:
            if not await prune.my_turn(connection, self._me()):
                return 0
            now_ms = round(time.time() * 1000)
            return await prune.prune(connection, self._me(), now_ms, self._settings.retention, rest)


async def rest(seconds: float) -> None:
    """Leave the others three quarters of the time: a server that is slow just now is left alone for longer."""
    await pause(RESTS * seconds)
