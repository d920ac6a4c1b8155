"""The offered load, put into the queue by COPY."""

import asyncio
import itertools
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import psycopg

from fleet import Fleet, Task
from fleet.errors import DatabaseUnreachable, OutcomeUnknown
from fleet.postgres.database import Statement
from fleet.postgres.inspect import first_id

from .gauges import Gauges
from .orders import Orders
from .outage import RETRY_SECONDS, complain, persist

LANES = 4  # so many batches may be under way at once
_OTHER_BYTES = 87  # what a payload takes beside its padding

# Ids begin with the time when they were made, so only what was submitted meanwhile is looked at.
FOUND = Statement("""
SELECT EXISTS (SELECT FROM fleet.task WHERE id >= :first::uuid AND id < :end::uuid AND args ->> 'batch' = :batch)
""")


class Producer:
    """Submits what is owed: what passing time has earned, what standard input asks for, or what the queue is short of."""

    def __init__(self, app: Fleet, work: Task[..., None], orders: Orders, gauges: Gauges) -> None:
        self._app, self._work, self._orders, self._gauges = app, work, orders, gauges
        self._credit = 0.0
        self._writing = 0  # tasks in batches under way
        self._batches = itertools.count()
        self._name = uuid4().hex[:8]
        self._padding = "x" * max(0, orders.payload_bytes - _OTHER_BYTES)

    async def run(self) -> None:
        """Produce, for ever. What an outage prevented is made up for afterwards."""
        async with asyncio.TaskGroup() as group:
            for _ in range(LANES):
                group.create_task(self._write())
            if self._orders.paced:
                group.create_task(self._obey())
            elif self._orders.target_depth is None:
                group.create_task(self._earn())

    async def _earn(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(self._orders.batch_seconds)
            before, passed = time.monotonic(), time.monotonic() - before
            self._credit += self._orders.rate_now() * passed

    async def _obey(self) -> None:
        """Read `ENQUEUE 25`, line by line."""
        reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            word, _, count = line.decode().partition(" ")
            if word == "ENQUEUE":
                self._credit += int(count)

    async def _write(self) -> None:
        """Write one batch after another, as long as something is owed that no other lane is writing."""
        while True:
            count = min(self._owed() - self._writing, self._orders.batch_max)
            if count <= 0:
                await asyncio.sleep(self._orders.batch_seconds)
                continue
            self._writing += count
            is_there = await self._submit(count)
            self._writing -= count
            if is_there:
                self._gauges.enqueued += count
                self._credit -= count
            else:
                await asyncio.sleep(RETRY_SECONDS)

    def _owed(self) -> int:
        target = self._orders.target_depth
        return int(self._credit) if target is None else target - self._gauges.depth

    async def _submit(self, count: int) -> bool:
        """Write one batch, and tell whether it is there."""
        batch, began = f"{self._name}-{next(self._batches)}", datetime.now(UTC)
        common = {"produced_at": time.time(), "batch": batch, "padding": self._padding}
        try:
            await self._app.submit_many(self._work, ({**common, "number": number} for number in range(count)))
        except OutcomeUnknown as error:
            complain(error)
            return await persist(partial(self._found, batch, began))
        except (DatabaseUnreachable, psycopg.Error) as error:
            complain(error)
            return False
        return True

    async def _found(self, batch: str, began: datetime) -> bool:
        """Look for a batch whose answer was lost. It was one COPY: any of its tasks stands for all of them."""
        end = first_id(datetime.now(UTC) + timedelta(milliseconds=1))
        rows = await self._app.client.query(FOUND, first=first_id(began), end=end, batch=batch)
        return bool(rows[0][0])
