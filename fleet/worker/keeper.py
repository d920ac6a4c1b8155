"""Keeps the lease: a thread of its own with a connection of its own, so that no handler and no pool can starve it."""

import asyncio
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.errors import SchemaMismatch
from fleet.events import Event, Events, LeaseGranted, LeaseLost, LeaseRenewed
from fleet.faultpoint import faultpoint
from fleet.lease import Lease, LeaseState, Tenure
from fleet.postgres import heartbeat
from fleet.postgres.database import Connection, Database
from fleet.postgres.patience import shut
from fleet.worker.loop import jittered, trouble

EXIT_STALLED = 70
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the keeper tells the event loop; each is called there."""

    granted: Callable[[Lease], None]
    lost: Callable[[Lease], None]
    drain: Callable[[str], None]
    cancel: Callable[[frozenset[tuple[UUID, int]]], None]
    refused: Callable[[SchemaMismatch], None]


class Keeper:
    """Registers a lease, renews it until `stop`, and registers a new one when it has been lost."""

    def __init__(
        self, database: Database, identity: heartbeat.Identity, settings: Settings, events: Events, callbacks: Callbacks
    ) -> None:
        self.lease: Lease | None = None
        self.tenure = Tenure(0.0)
        self.renewed_at: float | None = None  # Unix time by this machine's clock
        self._database = database
        self._identity = identity
        self._settings = settings
        self._events = events
        self._callbacks = callbacks
        self._loop = asyncio.get_running_loop()
        self._asked_at: float | None = None  # when the loop was asked to answer, and has not yet
        self._took_seconds = 0.0  # how long it took the last time
        self._beat_now = threading.Event()
        self._stopping = False
        self._retired = False
        self._renewed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-keeper", daemon=True)
        self._connection: Connection | None = None

    async def start(self) -> Lease:
        """Register the first lease and start the thread. Raises psycopg.OperationalError where that is impossible."""
        lease = await asyncio.to_thread(self._register)
        self._thread.start()
        return lease

    def holds(self, lease: Lease) -> bool:
        """Whether something may be started under this lease now, by this process's own, sooner, idea of its end."""
        return lease is self.lease and self.tenure.remaining(time.monotonic()) > 0

    async def renewal(self) -> None:
        """Renew at once, and wait until a renewal has succeeded or a new lease is there."""
        self._renewed.clear()
        self._beat_now.set()
        await self._renewed.wait()

    def wait_no_more(self) -> None:
        """Let whoever waits for a renewal go on without it."""
        self._renewed.set()

    def retire(self) -> None:
        """Keep this lease as long as it lasts, and register no other."""
        self._retired = True

    async def stop(self) -> None:
        self._stopping = True
        self._beat_now.set()
        await asyncio.to_thread(self._thread.join, self._settings.ttl.total_seconds())

    @property
    def alive(self) -> bool:
        """Whether the thread that keeps the lease runs."""
        return self._thread.is_alive()

    def loop_lag_seconds(self) -> float:
        """How long the event loop took to answer when it was last asked; while it does not, how long it has not."""
        asked_at = self._asked_at
        return self._took_seconds if asked_at is None else max(self._took_seconds, time.monotonic() - asked_at)

    def _run(self) -> None:
        while not self._stopping:
            wait = self._settings.renew_every
            try:
                self._beat()
            except SchemaMismatch as error:  # the schema was changed over our head
                self._retired = True
                self._tell(self._callbacks.refused, error)
            except Exception as error:  # noqa: BLE001 - without this thread the worker would wait for ever
                self._emit(trouble("renew", error))
                self._disconnect()
                wait /= 3
            self._watch_the_loop()
            self._beat_now.wait(jittered(wait))
            self._beat_now.clear()
        self._disconnect()

    def _beat(self) -> None:
        lease = self.lease
        if lease is None:
            if not self._retired:
                self._tell(self._callbacks.granted, self._register())
            return
        sent = time.monotonic()
        faultpoint("renew.before")
        with self._connected() as connection:
            renewed = heartbeat.renew(connection, lease)
        faultpoint("renew.after")
        if renewed is None:
            self.lease = None
            self._emit(LeaseLost(lease))
            self._tell(self._callbacks.lost, lease)
            self._beat_now.set()
            return
        self.tenure = Tenure.granted(sent, lease.ttl, self._settings.margin)
        self.renewed_at = time.time()
        self._emit(LeaseRenewed(lease, time.monotonic() - sent))
        if renewed.cancels:
            self._tell(self._callbacks.cancel, renewed.cancels)
        if renewed.state is LeaseState.DRAINING:
            self._tell(self._callbacks.drain, "its lease was set to drain")
        self._call_soon(self._renewed.set)

    def _register(self) -> Lease:
        lease = Lease(uuid7(), self._identity.worker, self._settings.ttl)
        sent = time.monotonic()
        with self._connected() as connection:
            heartbeat.register(connection, lease, self._identity)
        faultpoint("register.after")
        self.tenure = Tenure.granted(sent, lease.ttl, self._settings.margin)
        self.lease = lease
        self.renewed_at = time.time()
        self._emit(LeaseGranted(lease))
        self._call_soon(self._renewed.set)
        return lease

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Lend the connection, and shut its socket when the statement takes so long that trying again is better."""
        if self._connection is None:
            self._connection = self._database.connect_sync("heartbeat")
        descriptor = self._connection.fileno()
        guard = threading.Timer(self._patience().total_seconds(), shut, [descriptor])
        guard.daemon = True
        guard.start()
        try:
            yield self._connection
        finally:
            guard.cancel()

    def _patience(self) -> timedelta:
        return (self._settings.ttl - self._settings.margin) / 3

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _watch_the_loop(self) -> None:
        """Give the process up when its event loop does not answer for too long: its lease then ends by itself.

        Counted from the question on, so that a process that was itself stopped for a while does not blame its loop.
        """
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._call_soon(self._answered)
            return
        stood = time.monotonic() - self._asked_at
        if stood > self._settings.stall_limit.total_seconds():
            _say_last_words(f"fleet: the event loop has stood still for {stood:.1f} s; giving this process up\n")
            os._exit(EXIT_STALLED)

    def _answered(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        if asked_at is not None:
            self._took_seconds = time.monotonic() - asked_at

    def _emit(self, event: Event) -> None:
        self._call_soon(self._events.emit, event)

    def _tell(self, callback: Callable[[T], None], value: T) -> None:
        self._call_soon(callback, value)

    def _call_soon(self, callback: Callable[..., object], *values: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, *values)


def _say_last_words(words: str) -> None:
    """Write them and all stacks to stderr, as far as that takes them: a full pipe must not keep this process alive."""
    with suppress(OSError):
        if sys.platform != "win32":
            os.set_blocking(2, False)  # past sys.stderr, too: the thread that stands still may hold its lock
        os.write(2, words.encode())
        faulthandler.dump_traceback(2, all_threads=True)
        if sys.platform != "win32":
            os.set_blocking(2, True)
