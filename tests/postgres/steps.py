"""The steps that tests of the statements are made of."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from psycopg import AsyncClientCursor
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import claim, reap, settle
from fleet.postgres.database import AsyncConnection, Statement
from fleet.task import ClaimedTask, Errored, FailureCode, Outcome, Settlement, State, Succeeded, Verdict
from tests.support import PATIENCE_SECONDS, claim_some, expire_lease, pid_of, submit

T = TypeVar("T")

MINUTE = timedelta(minutes=1)
NOW = timedelta(0)
BACKOFF_BASE = timedelta(seconds=100)
BACKOFF_CAP = timedelta(seconds=1000)


def sweeper(me: UUID | None = None) -> reap.Sweeper:
    return reap.Sweeper(me or uuid7(), BACKOFF_BASE, BACKOFF_CAP)


def error(delay: timedelta | None, reason: str = "boom") -> Errored:
    return Errored(FailureCode.HANDLER_ERROR, reason, delay)


def lanes_of(*queues: str, position: claim.Position = claim.HEAD) -> list[claim.Lane]:
    """All lanes of the queues, the most urgent first, from one position on."""
    return [claim.Lane(queue, priority, position) for priority in range(10) for queue in queues]


async def take(connection: AsyncConnection, lease: Lease, *, idempotent: bool = True, **changes: Any) -> ClaimedTask:
    """Submit one task and claim it."""
    task_id = await submit(connection, **changes)
    tasks = await claim_some(
        connection,
        lease,
        1000,
        idempotent=idempotent,
        name=changes.get("name", "work"),
        queue=changes.get("queue", "default"),
    )
    return next(task for task in tasks if task.id == task_id)


async def settle_one(connection: AsyncConnection, task: ClaimedTask, outcome: Outcome) -> tuple[Verdict, State]:
    """Write one outcome, as the settler does."""
    write = settle.succeed if isinstance(outcome, Succeeded) else settle.give_back
    return (await write(connection, task.lease, [Settlement(task, outcome)]))[task.id, task.attempt]


async def end_lease(connection: AsyncConnection, lease: Lease) -> None:
    """Let the lease's time be over, and mark it."""
    await expire_lease(connection, lease)
    assert await reap.mark(connection, uuid7(), [lease.id]) == [lease.id]


async def reap_lease(connection: AsyncConnection, lease: Lease) -> reap.Reclaimed:
    """Let the lease's time be over, mark it and sweep."""
    await end_lease(connection, lease)
    return await reap.sweep(connection, sweeper(), [lease.id])


async def make_due(connection: AsyncConnection, *tasks: UUID) -> None:
    """Let the delay of waiting tasks be over."""
    await connection.execute("UPDATE fleet.task SET run_at = clock_timestamp() WHERE id = ANY (%s)", (list(tasks),))


async def whole(connection: AsyncConnection, task_id: UUID) -> tuple[Any, ...] | None:
    """Everything about a task: its row, down to the transaction that wrote it, and its history."""
    cursor = await connection.execute(
        """
        SELECT task.xmin::text, task.*, queue.generation,
               ARRAY(SELECT attempt FROM fleet.attempt WHERE task_id = task.id AND NOT late ORDER BY attempt.attempt)
        FROM fleet.task LEFT JOIN fleet.queue ON queue.name = task.queue
        WHERE task.id = %s
        """,
        (task_id,),
    )
    return await cursor.fetchone()


async def scalar(connection: AsyncConnection, query: str, *values: object) -> Any:
    """The first column of the first row."""
    row = await (await connection.execute(query.encode(), values)).fetchone()
    assert row is not None
    return row[0]


async def states(connection: AsyncConnection, ids: Sequence[UUID]) -> set[str]:
    cursor = await connection.execute("SELECT DISTINCT state FROM fleet.task WHERE id = ANY (%s)", (list(ids),))
    return {row[0] for row in await cursor.fetchall()}


async def at_the_same_moment(
    connection: AsyncConnection, before: str, statement: Statement, **values: Any
) -> list[tuple[Any, ...]]:
    """Run two statements that see the same statement_timestamp(): one message, hence one moment."""
    async with AsyncClientCursor(connection) as cursor:
        await cursor.execute(before.encode() + b";" + statement.native, values)
        assert cursor.nextset()
        return await cursor.fetchall()


async def waits(watch: AsyncConnection, running: "asyncio.Task[T]", connection: AsyncConnection) -> bool:
    """Wait until the statement running on `connection` waits for a lock (True), or is done (False)."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not running.done():
        assert time.monotonic() < deadline, "neither done nor waiting for a lock"
        if await scalar(watch, "SELECT cardinality(pg_blocking_pids(%s))", pid_of(connection)):
            return not running.done()
        await asyncio.wait({running}, timeout=0.002)
    return False
