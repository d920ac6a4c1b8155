"""Two connections in lock-step: one has done its step and not committed, the other one begins."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import cancel, claim, reap
from fleet.postgres.database import AsyncConnection
from fleet.task import Cancelled, ClaimedTask, Outcome, Released, State, Succeeded, Verdict
from tests.postgres.steps import (
    NOW,
    error,
    scalar,
    settle_one,
    sweeper,
    take,
    waits,
)
from tests.support import row

A = TypeVar("A")
B = TypeVar("B")
Step = Callable[[AsyncConnection], Awaitable[B]]
REPEATS = 10
OUTCOMES: list[Outcome] = [Succeeded("1"), error(NOW), error(None), Released("later"), Cancelled("asked to")]


@dataclass(frozen=True, slots=True)
class Stage:
    """`first` holds its step open while `second` takes its own; `watch` looks on."""

    first: AsyncConnection
    second: AsyncConnection
    watch: AsyncConnection
    queue: str
    lease: Lease
    rival: Lease

    async def while_open(self, hold: Step[A], other: Step[B], *, undo: bool = False) -> tuple[bool, A, B]:
        """Return whether the second had to wait for the first, and both answers."""
        async with self.first.transaction(force_rollback=undo):
            held = await hold(self.first)
            running = asyncio.ensure_future(as_task(other(self.second)))
            waited = await waits(self.watch, running, self.second)
        return waited, held, await running

    async def take(self, *, idempotent: bool = True) -> ClaimedTask:
        return await take(self.watch, self.lease, queue=self.queue, idempotent=idempotent)

    async def state(self, task_id: UUID) -> str:
        return str((await row(self.watch, task_id))["state"])

    def claiming(self, lease: Lease) -> Step[claim.Claimed | None]:
        lanes = [claim.Lane(self.queue, 5, claim.HEAD)]
        return lambda connection: claim.claim(connection, lease, lanes, {"work": True}, 10)

    def sweeping(self) -> Step[reap.Reclaimed]:
        return lambda connection: reap.sweep(connection, sweeper(), [self.lease.id])

    def marking(self) -> Step[list[UUID]]:
        return lambda connection: reap.mark(connection, uuid7(), [self.lease.id])

    def cancelling(self, task_id: UUID) -> Step[dict[UUID, tuple[State, bool]]]:
        return lambda connection: cancel.cancel(connection, [task_id], "operator")

    async def nothing_is_left_behind(self) -> None:
        """After a last sweep no task runs under a lease that is over, and such a lease is cleared."""
        await reap.sweep(self.watch, sweeper(), [self.lease.id, self.rival.id])
        orphans = await scalar(
            self.watch,
            """
            SELECT count(*) FROM fleet.task JOIN fleet.lease ON lease.id = task.lease_id
            WHERE task.queue = %s AND lease.state IN ('REAPED', 'RELEASED')
            """,
            self.queue,
        )
        uncleared = await scalar(
            self.watch,
            "SELECT count(*) FROM fleet.lease WHERE id = %s AND state IN ('REAPED', 'RELEASED') AND cleared_at IS NULL",
            self.lease.id,
        )
        assert (orphans, uncleared) == (0, 0)


async def as_task(step: Awaitable[B]) -> B:
    return await step


def settling(task: ClaimedTask, outcome: Outcome) -> Step[tuple[Verdict, State]]:
    return lambda connection: settle_one(connection, task, outcome)


def tasks_of(claimed: claim.Claimed | None) -> list[tuple[UUID, int]]:
    assert claimed is not None
    return [(task.id, task.attempt) for task in claimed.tasks]
