"""One worker: its parts put together, started in order, and drained in order."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Self
from uuid import UUID

import anyio
import psycopg
from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.errors import ConfigurationError, SchemaMismatch
from fleet.events import DrainStarted, Event, Events, LeaseInDoubt, TaskSettled
from fleet.handler import Handler
from fleet.lease import Lease
from fleet.postgres import claim, heartbeat
from fleet.postgres.database import Database
from fleet.task import ClaimedTask, Errored, FailureCode, Released, State
from fleet.tracing import spans_of
from fleet.worker.claimer import Claimer
from fleet.worker.keeper import Callbacks, Keeper
from fleet.worker.listener import Listener
from fleet.worker.loop import attempt, back_off, pause, reconnecting, trouble
from fleet.worker.maintenance import Maintenance
from fleet.worker.pruner import Pruner
from fleet.worker.settler import Settler
from fleet.worker.slots import Slots, Stop
from fleet.worker.standing import Standing

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def no_lifespan() -> AsyncIterator[None]:
    """Open nothing."""
    yield


class Worker:
    """Runs the handlers of one app under one lease at a time. `async with Worker(...) as worker: await worker.wait()`.

    Entering raises DatabaseUnreachable where there is no database, SchemaMismatch where this code does not work with its
    schema, and whatever the lifespan raises. From then on no outage ends it: only `drain` does, and leaving the block,
    which drains. And it drains by itself when it needs a new lease and the schema has become one that it does not work
    with; leaving the block then raises SchemaMismatch.
    """

    def __init__(
        self,
        database: Database,
        handlers: Mapping[str, Handler],
        settings: Settings,
        *,
        queues: Sequence[str] = (),
        name: str | None = None,
        lifespan: Lifespan = no_lifespan,
        version: str = "",
        events: Events | None = None,
    ) -> None:
        if not handlers:
            raise ConfigurationError("a worker needs at least one task to run: declare one with @app.task")
        self.events = events or Events()
        self.queues = tuple(sorted(set(queues) or {handler.queue for handler in handlers.values()}))
        self.name = name or _own_name()
        self.stuck = False  # a handler cannot be ended: the process must exit without waiting for it
        self._database = database
        self._handlers = dict(handlers)
        self._settings = settings
        self._lifespan = lifespan
        self._version = version
        self._stack = AsyncExitStack()
        self._drain = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drained = asyncio.Event()
        self._between = uuid7()
        self._entered = False
        self._misfit: SchemaMismatch | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease held now; None between two."""
        return self._keeper.lease

    def standing(self) -> Standing:
        """Tell how it stands now; from any thread."""
        if not self._entered:
            return Standing(slots=self._settings.slots)
        keeper = self._keeper
        lease, lag = keeper.lease, keeper.loop_lag_seconds()
        return Standing(
            slots=self._settings.slots,
            slots_busy=self._slots.taken,
            listening=self._listener.up(),
            renewed_at=keeper.renewed_at,
            loop_lag_seconds=lag,
            live=keeper.alive and lag <= self._settings.stall_limit.total_seconds(),
            ready=lease is not None and keeper.holds(lease) and not self._drain.is_set(),
        )

    async def __aenter__(self) -> Self:
        self._build()
        async with self._stack:
            self._slots.state = await self._stack.enter_async_context(self._lifespan())
            with self._database.reachable():
                await self._keeper.start()
            group = await self._stack.enter_async_context(anyio.create_task_group())
            group.start_soon(self._live, name="fleet worker")
            self._opened = self._stack.pop_all()
        self._entered = True
        return self

    async def __aexit__(self, *error: object) -> None:
        self.drain("the program left it")
        try:
            await self._drained.wait()
        finally:
            await self._opened.aclose()
        if self._misfit is not None and error[0] is None:
            raise self._misfit

    async def wait(self) -> None:
        """Return when the worker has drained."""
        await self._drained.wait()

    def drain(self, why: str) -> None:
        """Claim no more, let running handlers end, give the lease up. Called again, it waits no longer for handlers."""
        if self._drain.is_set():
            self._hurry.set()
            return
        self._drain.set()
        self.events.emit(DrainStarted(why))

    def _build(self) -> None:
        settings, events = self._settings, self.events
        identity = heartbeat.Identity(
            self.name, socket.gethostname(), os.getpid(), self._version, self.queues, settings.slots
        )
        callbacks = Callbacks(
            self._lease_granted, self._lease_lost, self._drain_asked, self._cancel_asked, self._schema_refused
        )
        self._keeper = Keeper(self._database, identity, settings, events, callbacks)
        self._settler = Settler(self._database, events, reconnecting(settings))
        self._slots = Slots(
            self._handlers,
            settings,
            events,
            report=self._settler.put,
            refusal=self._refusal,
            fetch_args=self._fetch_args,
            on_stuck=self._on_stuck,
            spans=spans_of(settings),
        )
        self._claimer = Claimer(
            self._database, self._handlers, self.queues, settings, events, self._keeper, self._slots, self._settler
        )
        self._listener = Listener(self._database, self.queues, settings, events, self._claimer.wake.set)
        self._claimer.listening = self._listener.up
        self._maintenance = Maintenance(self._database, settings, events, me=self._me, reclaimed=self._expect_retry)
        self._pruner = Pruner(self._database, settings, events, me=self._me)
        events.subscribe(self._notice)

    async def _live(self) -> None:
        """Run all parts until a drain is asked for, then drain and stop them."""
        try:
            async with anyio.create_task_group() as parts:
                for part in (
                    self._slots, self._settler, self._listener, self._maintenance, self._pruner, self._claimer.scout,
                ):  # fmt: skip
                    parts.start_soon(part.run)
                parts.start_soon(self._watch_tenure)
                claims_over = asyncio.Event()
                parts.start_soon(self._claim, claims_over)
                await self._drain.wait()
                self._keeper.retire()
                self._claimer.end()
                await claims_over.wait()
                await self._drain_in_order()
                await pause(self._settings.margin.total_seconds(), self._maintenance.resting)
                parts.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()
            self._drained.set()

    async def _claim(self, over: asyncio.Event) -> None:
        await self._claimer.run()
        over.set()

    async def _drain_in_order(self) -> None:
        """DRAINING, hand back, let handlers end, settle, RELEASED: each step bounded, so that a drain always ends."""
        patience = self._settings.drain_timeout.total_seconds()
        lease = self._keeper.lease
        if lease is not None:
            await self._insist(lambda: self._claimer.drain(lease), "drain")
        self._slots.hand_back_waiting("the worker was shut down before the task started")
        await self._until(lambda: not self._slots.busy, patience, self._slots.changed, self._hurry)
        self._slots.interrupt(Stop.DRAIN, lambda execution: True)
        grace = self._settings.margin.total_seconds()
        await self._until(lambda: not self._slots.busy, grace, self._slots.changed)
        for execution in self._slots.executions():
            self.stuck = True
            self._slots.settle_early(execution, _interrupted(execution.task))
        outage = self._settings.ttl.total_seconds()
        await self._until(lambda: self._settler.unsettled == 0, outage, self._settler.settled)
        await self._keeper.stop()
        if lease is not None and self._settler.unsettled == 0:
            await self._insist(lambda: self._claimer.close_lease(lease), "close")

    async def _insist(self, step: Callable[[], Awaitable[object]], name: str) -> None:
        """Take a step of the drain over a disruption. Give up at a second signal, or when it has lasted for too long.

        Only tasks that were claimed unheard make it worth a TTL: else the lease's own end costs nobody anything.
        """
        began, tries = time.monotonic(), 0
        while not await attempt(step, self.events, name):
            patience = self._settings.ttl if self._claimer.in_doubt else self._settings.margin
            if self._hurry.is_set() or time.monotonic() - began > patience.total_seconds():
                return
            await back_off(reconnecting(self._settings), tries, self._hurry)
            tries += 1

    async def _until(
        self, done: Callable[[], bool], seconds: float, changed: asyncio.Event, hurry: asyncio.Event | None = None
    ) -> None:
        deadline = time.monotonic() + seconds
        while not done() and (hurry is None or not hurry.is_set()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            changed.clear()
            await pause(min(remaining, self._settings.poll.total_seconds()), changed)

    async def _close(self) -> None:
        await self._keeper.stop()
        for part in (self._claimer, self._claimer.scout, self._settler, self._maintenance):
            await part.close()
        self._slots.close()

    async def _watch_tenure(self) -> None:
        """When the local deadline passes, stop what may be run again elsewhere; the rest goes on, its result is welcome."""
        doubted: Lease | None = None
        while True:
            lease, remaining = self._keeper.lease, self._keeper.tenure.remaining(time.monotonic())
            if lease is not None and remaining <= 0 and doubted is not lease:
                doubted = lease
                self.events.emit(LeaseInDoubt(lease))
                self._slots.interrupt(Stop.LEASE, lambda execution: execution.task.repeatable)
                self._slots.hand_back_waiting(Stop.LEASE.value)
            elif remaining > 0:
                doubted = None
            await pause(max(0.01, remaining) if remaining > 0 else self._settings.poll.total_seconds())

    def _lease_granted(self, lease: Lease) -> None:
        self._claimer.wake.set()

    def _lease_lost(self, lease: Lease) -> None:
        self._slots.hand_back_waiting(Stop.LEASE.value)
        self._slots.interrupt(Stop.LEASE, lambda execution: execution.task.repeatable and execution.task.lease is lease)
        self._claimer.wake.set()

    def _drain_asked(self, why: str) -> None:
        if not self._drain.is_set():
            self.drain(why)

    def _schema_refused(self, refusal: SchemaMismatch) -> None:
        self._misfit = refusal
        self._drain_asked(str(refusal))

    def _cancel_asked(self, cancels: frozenset[tuple[UUID, int]]) -> None:
        self._slots.interrupt(Stop.CANCEL, lambda execution: (execution.task.id, execution.task.attempt) in cancels)

    def _refusal(self, lease: Lease) -> Stop | None:
        """Say why nothing may start under this lease now, if so."""
        if self._drain.is_set():
            return Stop.DRAIN
        return None if self._keeper.holds(lease) else Stop.LEASE

    async def _fetch_args(self, task: ClaimedTask) -> str | None:
        """Fetch large arguments on a connection of its own, so that megabytes on their way hold up nobody."""
        tries = 0
        while True:
            try:
                async with await self._database.connect("fetch") as connection:
                    return await claim.fetch_args(connection, task)
            except psycopg.Error as error:
                self.events.emit(trouble("fetch", error))
            if not self._keeper.holds(task.lease):
                return "{}"  # it will be handed back, not started
            await back_off(reconnecting(self._settings), tries)
            tries += 1

    def _on_stuck(self, task: ClaimedTask) -> None:
        self.stuck = True
        self._drain_asked(f"task {task.id} ({task.name}) is past its time limit and cannot be stopped")

    def _notice(self, event: Event) -> None:
        """A task of ours that waits for its retry is known here: no need to find it by polling."""
        if isinstance(event, TaskSettled) and event.state is State.QUEUED:
            outcome = event.settlement.outcome
            delay = outcome.delay if isinstance(outcome, Errored) else None
            self._claimer.expect(delay.total_seconds() if delay else 0.0)

    def _expect_retry(self) -> None:
        self._claimer.expect(self._settings.backoff_base.total_seconds())

    def _me(self) -> UUID:
        """Who counts and reaps: the lease, or, between two, a name that nobody else has."""
        lease = self._keeper.lease
        return lease.id if lease is not None else self._between


def _own_name() -> str:
    """Return a name that tells workers apart: in a container, where every one is process 1, its host's."""
    pid = os.getpid()
    return socket.gethostname() if pid == 1 else f"worker-{pid}"


def _interrupted(task: ClaimedTask) -> Released | Errored:
    reason = Stop.DRAIN.value
    return Released(reason) if task.repeatable else Errored(FailureCode.INTERRUPTED, reason, None)
