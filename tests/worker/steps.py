"""The steps that tests of a worker are made of."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from fleet import TaskRef
from fleet.events import Event, Events
from fleet.lease import Lease
from fleet.postgres import reap
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from fleet.worker.process import Worker
from tests.support import PATIENCE_SECONDS, eventually

E = TypeVar("E", bound=Event)

SOON = timedelta(milliseconds=1)


class Recorder:
    """Keeps the events of a worker in their order."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.all: list[Event] = []
        events.subscribe(self.all.append)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.all if isinstance(event, kind)]

    async def seen(self, kind: type[E], count: int = 1) -> E:
        """Wait until so many of a kind have happened; return the last of them."""

        async def probe() -> list[E]:
            found = self.of(kind)
            return found if len(found) >= count else []

        return (await eventually(probe))[count - 1]

    async def next(self, kind: type[E]) -> E:
        """Wait for one that has not happened yet."""
        return await self.seen(kind, len(self.of(kind)) + 1)


class Gate:
    """A door inside async handlers: it records who comes, and lets nobody through before it is open."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.cancelled: list[Any] = []
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def enter(self, who: Any = None) -> None:
        self.entered.append(who)
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(who)
            raise

    async def waiting(self, count: int = 1) -> None:
        """Wait until so many have come."""
        await until(lambda: len(self.entered) >= count)


class ThreadGate:
    """The same inside plain functions; a test must open it, or the thread outlives it for a while."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def enter(self, who: Any = None) -> None:
        self.entered.append(who)
        assert self._open.wait(PATIENCE_SECONDS)

    async def waiting(self, count: int = 1) -> None:
        await until(lambda: len(self.entered) >= count)


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds."""

    async def probe() -> bool:
        return condition()

    await eventually(probe, seconds)


async def in_state(ref: TaskRef[Any], state: State, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the task is there."""

    async def probe() -> bool:
        return await ref.state() is state

    await eventually(probe, seconds)


def lease_of(worker: Worker) -> Lease:
    lease = worker.lease
    assert lease is not None
    return lease


async def fence(connection: AsyncConnection, lease: Lease) -> reap.Reclaimed:
    """End the lease and settle what it holds, as a reaper would."""
    assert await reap.end(connection, uuid7(), [lease.id]) == [lease.id]
    return await reap.sweep(connection, reap.Sweeper(uuid7(), SOON, SOON), [lease.id])


@asynccontextmanager
async def locked(holder: AsyncConnection, table: str, row_id: UUID) -> AsyncIterator[None]:
    """Hold a row of a table FOR UPDATE."""
    async with holder.transaction():
        await holder.execute(f"SELECT FROM fleet.{table} WHERE id = %s FOR UPDATE".encode(), (row_id,))
        yield


async def terminate(connection: AsyncConnection, role: str) -> int:
    """Kill the sessions of one role of the worker; returns how many there were."""
    cursor = await connection.execute(
        """
        SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = %s
        """,
        (f"fleet {role}",),
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def lease_state(connection: AsyncConnection, lease: Lease) -> str:
    cursor = await connection.execute("SELECT state FROM fleet.lease WHERE id = %s", (lease.id,))
    row = await cursor.fetchone()
    assert row is not None
    return str(row[0])


async def in_lease_state(connection: AsyncConnection, lease: Lease, state: str) -> None:
    """Wait until the database has the lease in this state."""

    async def probe() -> bool:
        return await lease_state(connection, lease) == state

    await eventually(probe)


@asynccontextmanager
async def outage(server_url: str, database_url: str) -> AsyncIterator[None]:
    """Let the database refuse everybody, after it has ended all sessions."""
    name = urlsplit(database_url).path[1:]
    async with await psycopg.AsyncConnection.connect(server_url, autocommit=True) as connection:
        await connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name LIKE 'fleet %%'",
            (name,),
        )
        try:
            yield
        finally:
            await connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
