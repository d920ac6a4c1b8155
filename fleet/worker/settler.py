"""Writes the ends of attempts: whenever it is free it takes everything that waits, and writes it in one statement each."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import psycopg

from fleet.events import Events, SettlementsWritten, TaskFenced, TaskSettled
from fleet.faultpoint import faultpoint
from fleet.lease import Lease
from fleet.postgres import settle
from fleet.postgres.database import AsyncConnection, Database, is_data_error
from fleet.retry import BackOff
from fleet.task import Errored, FailureCode, Settlement, State, Succeeded, Verdict
from fleet.worker.loop import back_off, trouble

BATCH = 1000
BUSY_SECONDS = 0.05

Write = Callable[[AsyncConnection, Lease, Sequence[Settlement]], Awaitable[settle.Answers]]


class Settler:
    """Settlements go in by `put`, in any number; each is tried until the database has taken or refused it."""

    def __init__(self, database: Database, events: Events, backoff: BackOff) -> None:
        self.settled = asyncio.Event()  # set whenever something has left
        self._database = database
        self._events = events
        self._backoff = backoff
        self._waiting: list[Settlement] = []
        self._open: dict[int, Settlement] = {}  # by identity: an attempt settled early reports once more
        self._doubtful: set[int] = set()  # those that were refused once
        self._arrived = asyncio.Event()
        self._connection: AsyncConnection | None = None

    def put(self, settlement: Settlement) -> None:
        self._open[id(settlement)] = settlement
        self._waiting.append(settlement)
        self._arrived.set()

    @property
    def unsettled(self) -> int:
        return len(self._open)

    def held(self) -> list[UUID]:
        """The ids of all tasks whose end is not written yet."""
        return [settlement.task.id for settlement in self._open.values()]

    async def run(self) -> None:
        """Settle, for ever."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._waiting = self._waiting, []
            for (lease, well), settlements in _sorted(batch).items():
                write = settle.succeed if well else settle.give_back
                for begin in range(0, len(settlements), BATCH):
                    await self._write(write, lease, settlements[begin : begin + BATCH])
            self.settled.set()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _write(self, write: Write, lease: Lease, settlements: Sequence[Settlement]) -> None:
        try:
            answers = await self._until_answered(write, lease, settlements)
        except psycopg.Error as error:
            await self._divide(write, lease, settlements, error)
            return
        if not answers:  # as nearly always
            for settlement in settlements:
                self._done(settlement, State.SUCCEEDED)
            return
        refused = []
        for settlement in settlements:
            verdict, state = answers[settlement.task.id, settlement.task.attempt]
            match verdict:
                case Verdict.SETTLED | Verdict.ALREADY:
                    self._done(settlement, state)
                case Verdict.BUSY:
                    asyncio.get_running_loop().call_later(BUSY_SECONDS, self.put, settlement)
                case Verdict.FENCED:
                    refused.append(settlement)
        if refused:
            await self._refused(lease, refused)

    async def _until_answered(self, write: Write, lease: Lease, settlements: Sequence[Settlement]) -> settle.Answers:
        """Send until there is an answer, over any outage. Raises only what the data themselves are to blame for."""
        tries = 0
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._database.connect("settle")
                sent = time.monotonic()
                faultpoint("settle.before", write.__name__)
                answers = await write(self._connection, lease, settlements)
                faultpoint("settle.after", write.__name__)
                self._events.emit(SettlementsWritten(len(settlements), time.monotonic() - sent))
            except psycopg.Error as error:
                if is_data_error(error):
                    raise
                self._events.emit(trouble("settle", error))
                await self._disconnect()
            else:
                return answers
            await back_off(self._backoff, tries)
            tries += 1

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _divide(
        self, write: Write, lease: Lease, settlements: Sequence[Settlement], error: psycopg.Error
    ) -> None:
        """Halve a batch that the database cannot take, down to the row that is to blame: that one alone is rejected."""
        if len(settlements) > 1:
            middle = len(settlements) // 2
            await self._write(write, lease, settlements[:middle])
            await self._write(write, lease, settlements[middle:])
            return
        reason = f"the handler finished, but the database refused its result: {trouble('settle', error).error}"
        self.put(Settlement(settlements[0].task, Errored(FailureCode.RESULT_REJECTED, reason, None)))
        self._forget(settlements[0])

    async def _refused(self, lease: Lease, settlements: Sequence[Settlement]) -> None:
        """Ask once more; whoever is refused twice is fenced: its report is kept as late."""
        late = []
        for settlement in settlements:
            if id(settlement) in self._doubtful:
                late.append(settlement)
            else:
                self._doubtful.add(id(settlement))
                self.put(settlement)
        if late:
            await self._until_answered(_record_late, lease, late)
            for settlement in late:
                self._forget(settlement)
                self._events.emit(TaskFenced(settlement))

    def _done(self, settlement: Settlement, state: State) -> None:
        self._forget(settlement)
        self._events.emit(TaskSettled(settlement, state))

    def _forget(self, settlement: Settlement) -> None:
        self._doubtful.discard(id(settlement))
        del self._open[id(settlement)]


async def _record_late(connection: AsyncConnection, lease: Lease, settlements: Sequence[Settlement]) -> settle.Answers:
    await settle.record_late(connection, lease, settlements)
    return settle.Answers()


def _sorted(batch: Sequence[Settlement]) -> dict[tuple[Lease, bool], list[Settlement]]:
    groups: dict[tuple[Lease, bool], list[Settlement]] = defaultdict(list)
    for settlement in batch:
        groups[settlement.task.lease, isinstance(settlement.outcome, Succeeded)].append(settlement)
    return groups
