"""Keeps the slots filled: claims when there is room, peeks while there is nothing, sleeps when nothing comes."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import psycopg

from fleet.config import Settings
from fleet.events import Events, TasksClaimed, TasksReconciled
from fleet.faultpoint import faultpoint
from fleet.handler import Handler
from fleet.lease import Lease
from fleet.postgres import claim, heartbeat, listen
from fleet.postgres.database import AsyncConnection, Database
from fleet.task import ClaimedTask, Errored, FailureCode, Outcome, Released, Settlement
from fleet.worker.keeper import Keeper
from fleet.worker.lanes import Lanes
from fleet.worker.loop import back_off, jittered, pause, reconnecting, trouble
from fleet.worker.scout import Scout
from fleet.worker.settler import Settler
from fleet.worker.slots import Slots

NAP_SECONDS = 0.002  # a busy worker lets so much time pass before it claims again what will have come in
AWAKE_SECONDS = 0.05  # so long without a sleep of at least a nap, and it takes back that it sleeps
UNSETTLED_MAX = 4  # times the slots: no more claims while so much waits to be settled
LOOK_EVERY = 20  # times the TTL: so often to look for what the database says that we hold, without any reason
REMEMBERED = 10_000  # attempts that must not be repeated: whether a claim's answer came is known of so many


class Claimer:
    """The only one who claims, and so the only one who may ask what this lease holds without anybody knowing."""

    def __init__(
        self,
        database: Database,
        handlers: Mapping[str, Handler],
        queues: Sequence[str],
        settings: Settings,
        events: Events,
        keeper: Keeper,
        slots: Slots,
        settler: Settler,
    ) -> None:
        self.wake = asyncio.Event()  # something may have come in
        self.listening: Callable[[], bool] = lambda: False
        self._database = database
        self._flags = {name: handler.idempotent for name, handler in handlers.items()}
        self._lanes = Lanes(queues)
        self.scout = Scout(database, self._lanes, list(self._flags), settings, events, self.wake.set)
        self._settings = settings
        self._events = events
        self._keeper = keeper
        self._slots = slots
        self._settler = settler
        self._backoff = reconnecting(settings)
        self._connection: AsyncConnection | None = None
        self._ending = False
        self._checks: list[float] = []  # when to look for tasks whose claim was answered to nobody
        self._look_at = time.monotonic() + LOOK_EVERY * settings.ttl.total_seconds()  # when to look in any case
        self._heard: deque[tuple[UUID, int]] = deque(maxlen=REMEMBERED)
        self._due_at: float | None = None  # when something is known to become due here
        self._troubles = 0
        self._in_vain = 0  # claims in a row that brought nothing although something was there: somebody has it locked
        self._idle: Lease | None = None  # under this lease we have said that we sleep: inserts announce themselves
        self._slept_at = 0.0  # when a sleep worth its name ended
        self._quick = True  # we were the first, the last time that an insert announced itself

    @property
    def in_doubt(self) -> bool:
        """Whether this lease may hold tasks that nobody here has heard of."""
        return bool(self._checks)

    def end(self) -> None:
        """Claim no more; `run` returns when the statement that is under way has been answered."""
        self._ending = True
        self._keeper.wait_no_more()
        self.wake.set()
        self._slots.changed.set()

    def expect(self, seconds: float) -> None:
        """Something becomes due in so many seconds: be there."""
        due_at = time.monotonic() + seconds
        self._due_at = due_at if self._due_at is None else min(self._due_at, due_at)
        self.wake.set()

    async def run(self) -> None:
        """Claim, until `end`."""
        while not self._ending:
            try:
                await self._turn()
                self._troubles = 0
            except psycopg.Error as error:
                self._events.emit(trouble("claim", error))
                await self._disconnect()
                self._look_at = 0.0  # it may come back from a crash or a failover without its last commits
                await back_off(self._backoff, self._troubles)
                self._troubles += 1

    async def drain(self, lease: Lease) -> None:
        """Give up the right to claim, and hand back what nobody knows of. Call it after `run` has returned."""
        await self._disconnect()  # it may have died unnoticed while all slots were busy
        connection = await self._connect()
        faultpoint("drain.before")
        await heartbeat.drain(connection, lease.id)
        faultpoint("drain.after")
        if self._checks:
            await self._reconcile(connection, lease)

    async def close_lease(self, lease: Lease) -> None:
        """DRAINING → RELEASED: nothing is held any more."""
        await self._disconnect()
        await heartbeat.close(await self._connect(), lease)

    async def close(self) -> None:
        await self._disconnect()

    async def _turn(self) -> None:
        if time.monotonic() - self._slept_at > AWAKE_SECONDS:
            await self._wake_up()
        await self._room()
        lease = self._keeper.lease
        if self._ending:
            return
        if lease is None or not self._keeper.holds(lease):
            await self._keeper.renewal()
            return
        connection = await self._connect()
        if min([self._look_at, *self._checks[:1]]) <= time.monotonic():
            await self._reconcile(connection, lease)
        free = self._slots.free
        brought = await self._claim(connection, lease, free)
        if brought is None or brought == free:
            return
        if brought and self._idle is not lease:
            await pause(NAP_SECONDS)
        else:
            await self._rest(connection, lease)

    async def _room(self) -> None:
        """Wait until a slot is free and the settler keeps up."""
        while not self._ending:
            self._slots.changed.clear()
            self._settler.settled.clear()
            if self._slots.free <= 0 and self._idle is not None:
                await pause(AWAKE_SECONDS, self._slots.changed)
                if self._slots.free <= 0:
                    await self._wake_up()  # others may have room
            elif self._slots.free <= 0:
                await self._slots.changed.wait()
            elif self._settler.unsettled >= UNSETTLED_MAX * self._settings.slots:
                await self._settler.settled.wait()
            else:
                return

    async def _claim(self, connection: AsyncConnection, lease: Lease, free: int) -> int | None:
        """Claim once, and return how many tasks it brought; None where the lease was not good enough."""
        sent = time.monotonic()
        lanes = self._lanes.order(sent)
        faultpoint("claim.before")
        try:
            claimed = await claim.claim(connection, lease, lanes, self._flags, free)
        except psycopg.Error:
            # Nobody knows whether it took something. A proxy may even deliver it later: hence more than one look.
            again = self._settings.renew_every.total_seconds()
            self._checks = [sent, sent + again, sent + 2 * again]
            raise
        if claimed is None:
            if not self._ending:
                await self._keeper.renewal()
            return None
        now = time.monotonic()
        claimed.tasks.sort(key=lambda task: (task.priority, task.run_at, task.id))
        self._lanes.learn(
            lanes,
            claimed.tasks,
            full=len(claimed.tasks) == free,
            seen=claimed.seen,
            generations=claimed.generations,
            cost=now - sent,
            now=now,
        )
        self.scout.owed.set()
        self._quick = bool(claimed.tasks)
        if claimed.tasks:
            faultpoint("claim.after")
            self._in_vain = 0
            self._heard.extend([(task.id, task.attempt) for task in claimed.tasks if not task.repeatable])
            self._slots.put(claimed.tasks)
            self._events.emit(TasksClaimed(len(claimed.tasks), now - sent, claimed.tasks, claimed.seen))
            await asyncio.sleep(0)  # they start before the next statement is made ready
        return len(claimed.tasks)

    async def _peek(self, connection: AsyncConnection) -> float | None:
        """Return how many seconds to sleep before the next look, or None where there is something to claim."""
        sent = time.monotonic()
        lanes = self._lanes.order(sent)
        peeked = await claim.peek(connection, lanes, list(self._flags))
        if peeked.ready:
            self._in_vain += 1
            return None
        now = time.monotonic()
        self._lanes.learn(
            lanes, [], full=False, seen=peeked.seen, generations=peeked.generations, cost=now - sent, now=now
        )
        self.scout.owed.set()
        longest = jittered(self._settings.poll_listening if self.listening() else self._settings.poll)
        due = [wait for wait in (peeked.next_due_seconds, self._lanes.owed_seconds(now)) if wait is not None]
        if self._due_at is not None:
            due.append(self._due_at - now)
            if self._due_at <= now:
                self._due_at = None
        return max(0.001, min([longest, *due]))

    async def _rest(self, connection: AsyncConnection, lease: Lease) -> None:
        """Return when there is something to claim, or a reason to look into the lease again."""
        if self._in_vain:
            await pause(min(NAP_SECONDS * 2 ** min(self._in_vain, 20), self._settings.poll.total_seconds()))
        idle, longest = self.listening(), NAP_SECONDS
        if idle and not await self._sleep(connection, lease):
            return
        while not self._ending and self._keeper.holds(lease) and not self._checks and self.listening() == idle:
            if self._look_at <= time.monotonic():
                return
            self.wake.clear()
            seconds = await self._peek(connection)
            if seconds is None:
                return
            began = time.monotonic()
            await pause(seconds if idle else min(seconds, longest), self.wake)
            longest *= 2  # nobody calls: look soon at first, and then less and less often
            if time.monotonic() - began >= NAP_SECONDS:
                self._slept_at = time.monotonic()
            if self._quick and self.wake.is_set():
                return  # without a look: where many are called, the first of the last time is quick, the others look
        if not self.listening():
            await self._wake_up()

    async def _sleep(self, connection: AsyncConnection, lease: Lease) -> bool:
        """Say that we sleep, unless that is known. False where something came before everybody could know."""
        if self._idle is not lease:
            await listen.set_idle(connection, lease.id, idle=True)
            self._idle, self._slept_at = lease, time.monotonic()
            if not await self._hears_everything(connection):
                await self._wake_up()
                return False
        return True

    async def _wake_up(self) -> None:
        """Take back that we sleep: nobody has to call us."""
        if self._idle is not None and self._connection is not None:
            await listen.set_idle(self._connection, self._idle.id, idle=False)
            self._idle = None

    async def _hears_everything(self, connection: AsyncConnection) -> bool:
        """Peek until every insert that could not see us sleep, and so calls nobody, has ended. False: something came."""
        mark = await listen.barrier(connection)
        seconds = NAP_SECONDS
        while not await listen.passed(connection, mark):
            self.wake.clear()
            if self._ending or await self._peek(connection) is None:
                return False
            await pause(seconds, self.wake)
            seconds = min(2 * seconds, self._settings.poll.total_seconds())
        return True

    async def _reconcile(self, connection: AsyncConnection, lease: Lease) -> None:
        """Settle what this lease holds and nobody here is at work on."""
        lost = await claim.reconcile(connection, lease, self._slots.held() + self._settler.held())
        for task in lost:
            self._settler.put(Settlement(task, self._unknown(task)))
        if lost:
            self._events.emit(TasksReconciled(len(lost)))
        now = time.monotonic()
        self._look_at = now + LOOK_EVERY * self._settings.ttl.total_seconds()
        if self._checks and self._checks[0] <= now:
            del self._checks[0]

    def _unknown(self, task: ClaimedTask) -> Outcome:
        """Say what becomes of such a task: it never started here, or the database has forgotten how it ended."""
        if (task.id, task.attempt) not in self._heard:
            return Released("the answer to its claim was lost")
        reason = "it ended here, and the database has forgotten how: what it did is unknown"
        return Errored(FailureCode.INTERRUPTED, reason, None)

    async def _connect(self) -> AsyncConnection:
        if self._connection is None:
            self._connection = await self._database.connect("claim")
        return self._connection

    async def _disconnect(self) -> None:
        self._idle = None  # a server that crashed may have forgotten it: it is said again
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
