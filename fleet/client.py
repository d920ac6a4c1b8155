"""The submitting side's connections, and a reference to what was submitted."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from fleet.errors import DatabaseUnreachable, NotFound, TaskCancelled, TaskFailed
from fleet.postgres import fit, inspect
from fleet.postgres.cancel import cancel
from fleet.postgres.database import AsyncConnection, Connection, Database, Row, Statement, answered, run, run_sync
from fleet.postgres.transaction import AsyncTransaction, Transaction, run_in, run_in_sync
from fleet.task import State

R = TypeVar("R")
Seconds = timedelta | float

_POOL_MAX = 8
_POLL_SECONDS = (0.005, 0.25)  # how often a caller that waits for a result looks: first and at last


class _Pool(NamedTuple):
    """A pool with a queue before it: to wait inside the pool takes as much processor time as a whole statement."""

    connections: AsyncConnectionPool[AsyncConnection]
    turns: asyncio.Semaphore


class Client:
    """Pools of connections in autocommit, opened when first needed: one for each event loop, one for plain code.

    Whatever is done first raises SchemaMismatch, and does nothing, where this code does not work with the schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._fits = False
        self._pool_options: dict[str, Any] = {
            "conninfo": database.conninfo("client"),
            "min_size": 0,
            "max_size": _POOL_MAX,
            "timeout": database.settings.statement_timeout.total_seconds(),
            # By default the pool's tries move apart as far as five minutes: an outage would last as long again.
            "reconnect_timeout": database.settings.statement_timeout.total_seconds(),
            "kwargs": database.options,
        }
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._pool_sync: ConnectionPool[Connection] | None = None

    async def query(self, statement: Statement, **values: Any) -> list[Row]:
        """Run one statement on a pooled connection, in autocommit."""
        async with self.connection() as connection:
            with answered():
                return await run(connection, statement, **values)

    def query_sync(self, statement: Statement, **values: Any) -> list[Row]:
        """Do the same from plain code."""
        if self._pool_sync is None:
            self._pool_sync = ConnectionPool(**self._pool_options, connection_class=Connection, open=True)
        with self._database.reachable():
            try:
                connection = self._pool_sync.getconn()
            except PoolTimeout:
                self._database.connect_sync("client").close()  # as below
                raise
            try:
                if not self._fits:
                    with answered(writing=False):
                        fit.demand_sync(connection)
                    self._fits = True
                with answered():
                    return run_sync(connection, statement, **values)
            finally:
                self._pool_sync.putconn(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """Lend a pooled connection in autocommit. Raises DatabaseUnreachable."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            connections = AsyncConnectionPool(
                **self._pool_options, connection_class=AsyncConnection, configure=self._database.teach, open=False
            )
            pool = _Pool(connections, asyncio.Semaphore(_POOL_MAX))
            self._pools[loop] = pool
            await pool.connections.open()
        await self._turn(pool)
        try:
            with self._database.reachable():
                try:
                    connection = await pool.connections.getconn()
                except PoolTimeout:  # that it took too long is all that the pool says; the server's own words tell why
                    await (await self._database.connect("client")).close()
                    raise
                try:  # not by its own context manager, which ends a transaction that autocommit never begins
                    if not self._fits:
                        with answered(writing=False):
                            await fit.demand(connection)
                        self._fits = True
                    yield connection
                finally:
                    await pool.connections.putconn(connection)
        finally:
            pool.turns.release()

    async def query_in(self, transaction: AsyncTransaction | Transaction, statement: Statement, **values: Any) -> Row:
        """Run one statement of one row in the caller's own transaction. Nothing is committed here."""
        if not self._fits:
            fit.demand_of(await run_in(transaction, fit.REVISION, {}))
            self._fits = True
        return await run_in(transaction, statement, values)

    def query_in_sync(self, transaction: AsyncTransaction | Transaction, statement: Statement, **values: Any) -> Row:
        """Do the same in a synchronous one."""
        if not self._fits:
            fit.demand_of(run_in_sync(transaction, fit.REVISION, {}))
            self._fits = True
        return run_in_sync(transaction, statement, values)

    async def _turn(self, pool: _Pool) -> None:
        if not pool.turns.locked():
            await pool.turns.acquire()
            return
        seconds = self._database.settings.statement_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                await pool.turns.acquire()
        except TimeoutError:
            words = (
                f"all {_POOL_MAX} connections of this client to {self._database.address} were in use for {seconds:g} s"
            )
            raise DatabaseUnreachable(words) from None

    async def close(self) -> None:
        """Close the connections that submitting has opened."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.connections.close()
        if self._pool_sync is not None:
            self._pool_sync.close()
            self._pool_sync = None


@dataclass(frozen=True, slots=True)
class TaskRef(Generic[R]):
    """A task that was submitted."""

    id: UUID  #: never changes, and is what every command takes
    client: Client

    async def result(self, timeout: Seconds | None = None) -> R:
        """Wait until the task is terminal and return what its handler returned, as JSON gives it back.

        Raises TaskFailed, TaskCancelled, NotFound, or TimeoutError: after that nothing is known, ask again.
        """
        deadline = None if timeout is None else time.monotonic() + as_duration(timeout).total_seconds()
        wait, longest = _POLL_SECONDS
        while True:
            rows = await self.client.query(inspect.RESULT, id=self.id)
            found = self._read(inspect.TaskResult(*rows[0]) if rows else None)
            if found is not None:
                return cast("R", found[0])
            if deadline is not None and time.monotonic() + wait > deadline:
                raise TimeoutError(f"task {self.id} is not finished yet; it goes on")
            await asyncio.sleep(wait)
            wait = min(2 * wait, longest)

    async def state(self) -> State:
        """Return where the task is now. Raises NotFound."""
        rows = await self.client.query(inspect.RESULT, id=self.id)
        if not rows:
            raise NotFound(f"there is no task {self.id}")
        return State(rows[0][0])

    async def cancel(self) -> State:
        """Cancel it. CANCELLED: it will not run. RUNNING: its worker is asked to stop. Another state: too late."""
        async with self.client.connection() as connection:
            with answered():
                answer = await cancel(connection, [self.id], actor="api")
        if self.id not in answer:
            raise NotFound(f"there is no task {self.id}")
        return answer[self.id][0]

    def _read(self, found: inspect.TaskResult | None) -> tuple[Any] | None:
        if found is None:
            raise NotFound(f"there is no task {self.id}; it was never committed, or it was pruned")
        match State(found.state):
            case State.SUCCEEDED:
                return (json.loads(found.result or "null"),)
            case State.FAILED:
                raise TaskFailed(self.id, found.failure_code or "", found.failure_reason or "")
            case State.CANCELLED:
                raise TaskCancelled(self.id)
        return None


def as_duration(value: Seconds) -> timedelta:
    """Read seconds as a duration."""
    return value if isinstance(value, timedelta) else timedelta(seconds=value)
