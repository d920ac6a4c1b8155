"""What tests share: building rows, and waiting for conditions with a deadline (never for time to pass)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import claim, heartbeat
from fleet.postgres.database import AsyncConnection, Connection, Statement, run
from fleet.postgres.submit import Submission, statement
from fleet.schema import SCHEMA_MAX, SCHEMA_MIN
from fleet.task import ClaimedTask

T = TypeVar("T")
PATIENCE_SECONDS = 30.0
TTL = timedelta(seconds=2)


def url_of(server_url: str, database: str) -> str:
    """The same server, another database."""
    return urlsplit(server_url)._replace(path=f"/{database}").geturl()


async def eventually(probe: Callable[[], Awaitable[T]], seconds: float = PATIENCE_SECONDS) -> T:
    """Ask until the answer is true; fail with the last one when the patience is over."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds} s; last answer: {answer!r}"
        await asyncio.sleep(0.01)


def eventually_sync(probe: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds} s; last answer: {answer!r}"
        time.sleep(0.01)


async def blocked(connection: AsyncConnection, pid: int) -> None:
    """Wait until the backend `pid` waits for somebody's lock."""

    async def probe() -> bool:
        rows = await (await connection.execute("SELECT pg_blocking_pids(%s)", (pid,))).fetchall()
        return bool(rows[0][0])

    await eventually(probe)


async def new_lease(
    connection: AsyncConnection,
    *,
    worker: str = "worker",
    ttl: timedelta = TTL,
    queues: Sequence[str] = ("default",),
    schemas: tuple[int, int] = (SCHEMA_MIN, SCHEMA_MAX),
) -> Lease:
    """Register a lease, as a worker of its own would."""
    lease = Lease(uuid7(), worker, ttl)
    await run(
        connection,
        heartbeat.REGISTER,
        lease=lease.id, worker=worker, host="host", pid=1, version="test", queues=list(queues), slots=8, ttl=ttl,
        schema_min=schemas[0], schema_max=schemas[1],
    )  # fmt: skip
    return lease


async def renew(connection: AsyncConnection, lease: Lease) -> list[tuple[Any, ...]]:
    return await run(connection, heartbeat.RENEW, lease=lease.id)


async def submit(connection: AsyncConnection, **changes: Any) -> UUID:
    """Write one task: name `work`, queue `default`, no arguments, budgets of an idempotent handler."""
    values: dict[str, Any] = {
        "id": uuid7(), "queue": "default", "name": "work", "args": "{}", "max_attempts": 5,
    } | changes  # fmt: skip
    query, parameters = statement(Submission(**values))
    return UUID(str((await run(connection, query, **parameters))[0][0]))


async def claim_some(
    connection: AsyncConnection,
    lease: Lease,
    free: int = 10,
    *,
    idempotent: bool = True,
    name: str = "work",
    queue: str = "default",
) -> list[ClaimedTask]:
    """Claim from the head of all lanes of a queue; fails the test when the lease is over."""
    lanes = [claim.Lane(queue, priority, claim.HEAD) for priority in range(10)]
    claimed = await claim.claim(connection, lease, lanes, {name: idempotent}, free)
    assert claimed is not None
    return sorted(claimed.tasks, key=lambda task: (task.priority, task.run_at, task.id))


async def expire_lease(connection: AsyncConnection, lease: Lease) -> None:
    """Let the lease's time be over, without waiting for it."""
    await connection.execute(
        "UPDATE fleet.lease SET renewed_at = renewed_at - ttl, expires_at = clock_timestamp() WHERE id = %s",
        (lease.id,),
    )


async def row(connection: AsyncConnection, task_id: UUID) -> dict[str, Any]:
    """The whole row of a task."""
    cursor = await connection.execute("SELECT * FROM fleet.task WHERE id = %s", (task_id,))
    values = await cursor.fetchone()
    assert values is not None
    assert cursor.description is not None
    return dict(zip([column.name for column in cursor.description], values, strict=True))


async def history(connection: AsyncConnection, task_id: UUID) -> list[tuple[int, bool, str]]:
    """(attempt, late, outcome) of a task, in order."""
    cursor = await connection.execute(
        "SELECT attempt, late, outcome FROM fleet.attempt WHERE task_id = %s ORDER BY attempt, late", (task_id,)
    )
    return [(row[0], row[1], row[2]) for row in await cursor.fetchall()]


async def counters(connection: AsyncConnection) -> dict[tuple[str, str, str], int]:
    """All counters by (name, queue, reason), added up over their writers."""
    cursor = await connection.execute("SELECT name, queue, reason, sum(value)::int FROM fleet.counter GROUP BY 1, 2, 3")
    return {(row[0], row[1], row[2]): row[3] for row in await cursor.fetchall()}


def pid_of(connection: AsyncConnection | Connection) -> int:
    return connection.info.backend_pid


async def execute(connection: AsyncConnection, text: str, **values: Any) -> list[tuple[Any, ...]]:
    """Run any SQL with :named parameters."""
    return await run(connection, Statement(text), **values)
