"""What every worker does for the whole fleet beside its own work: reap, sweep, expire. No leader, no schedule."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from fleet.config import Settings
from fleet.events import Events, LeasesReaped, TasksExpired, TasksReclaimed
from fleet.faultpoint import faultpoint
from fleet.postgres import cancel, expire, reap
from fleet.postgres.database import AsyncConnection, Database
from fleet.worker.loop import every

FULL_PASS_EVERY = 120  # reaps: every ten minutes with a TTL of 30 s
GAP = 3  # reap periods: a witness that has not looked for so long has seen nothing


class Witness:
    """What this process itself has seen of the others' leases, on its own monotonic clock.

    Only a witness may accuse: it must have seen the same `renewed_at` for the lease's own TTL, without a gap. So after
    an outage of the database, a failover, a step of its clock or a pause of this process, everybody gets a whole TTL to
    renew first, and nobody is reaped for having been unable to write.
    """

    def __init__(self, gap: timedelta) -> None:
        self._gap_seconds = gap.total_seconds()
        self._looked_at: float | None = None
        self._since: dict[UUID, tuple[datetime, float]] = {}

    def accuse(self, leases: Sequence[reap.LeaseSeen], now: float) -> list[UUID]:
        """Take in one reading of the leases and return those that this witness holds to be dead."""
        if self._looked_at is None or now - self._looked_at > self._gap_seconds:
            self._since = {}
        self._looked_at = now
        known, self._since = self._since, {}
        accused = []
        for lease in leases:
            if lease.ended:
                continue
            renewed_at, since = known.get(lease.id, (None, now))
            if renewed_at != lease.renewed_at:
                since = now
            self._since[lease.id] = (lease.renewed_at, since)
            if lease.expired and now - since >= lease.ttl.total_seconds():
                accused.append(lease.id)
        return accused


class Maintenance:
    """The steps, each callable alone, and the loop that takes them."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        events: Events,
        *,
        me: Callable[[], UUID],
        reclaimed: Callable[[], None],
    ) -> None:
        self._database = database
        self._settings = settings
        self._events = events
        self._me = me
        self._reclaimed = reclaimed
        self._witness = Witness(settings.reap_every * GAP)
        self._connection: AsyncConnection | None = None
        self._rounds = 0
        self.resting = asyncio.Event()  # set between two rounds
        self.resting.set()

    async def run(self) -> None:
        """Take every step when it is due, for ever."""
        await every(self._settings.reap_every, self._round, self._events, "maintenance")

    async def _round(self) -> None:
        self.resting.clear()
        try:
            await self.step()
        finally:
            self.resting.set()

    async def step(self) -> None:
        """One round: reap and sweep; expire; and now and then look for orphans."""
        connection = await self._connected()
        seen = await reap.survey(connection)
        await self.reap_once(connection, seen.leases)
        if seen.overdue:
            await self.expire_once(connection)
        if self._rounds % FULL_PASS_EVERY == 0:
            self._tell(await reap.sweep_orphans(connection, self._sweeper()))
            await cancel.forget(connection)
        self._rounds += 1

    async def reap_once(self, connection: AsyncConnection, leases: Sequence[reap.LeaseSeen]) -> None:
        """Mark the leases that are surely dead; settle what ended ones still hold."""
        accused = [lease for lease in self._witness.accuse(leases, time.monotonic()) if lease != self._me()]
        marked = await self._mark(connection, accused) if accused else []
        if marked:
            self._events.emit(LeasesReaped(tuple(marked)))
        ended = marked + [lease.id for lease in leases if lease.ended]
        if ended:
            faultpoint("sweep.before")
            done = await reap.sweep(connection, self._sweeper(), ended)
            faultpoint("sweep.after")
            self._tell(done)

    async def _mark(self, connection: AsyncConnection, accused: Sequence[UUID]) -> list[UUID]:
        faultpoint("mark.before")
        marked = await reap.mark(connection, self._me(), accused)
        faultpoint("mark.after")
        return marked

    async def expire_once(self, connection: AsyncConnection) -> None:
        """Fail what nobody started in time."""
        count = await expire.expire(connection, self._me())
        if count:
            self._events.emit(TasksExpired(count))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _sweeper(self) -> reap.Sweeper:
        return reap.Sweeper(self._me(), self._settings.backoff_base, self._settings.backoff_cap)

    def _tell(self, reclaimed: reap.Reclaimed) -> None:
        if reclaimed:
            self._events.emit(TasksReclaimed(reclaimed.requeued, reclaimed.failed, reclaimed.cancelled))
            self._reclaimed()

    async def _connected(self) -> AsyncConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._database.connect("maintenance")
        return self._connection
