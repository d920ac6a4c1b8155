"""What one schedule plays in: leases, tasks, what the actors were told, and how all of it is healed at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from fleet.lease import Lease
from fleet.postgres import claim, expire, reap, settle
from fleet.postgres.submit import Submission
from fleet.task import ClaimedTask, Outcome, Settlement, State, Succeeded
from tests.simulation.actor import Violation
from tests.simulation.story import Story
from tests.simulation.theatre import Theatre
from tests.support import execute, new_lease, submit

QUEUE = "default"
LANES = [claim.Lane(QUEUE, 5, claim.HEAD)]
HANDLERS = {"work": True, "once": False}
NOW = timedelta(0)
ROUNDS = 20

OUTLIVE = """
UPDATE fleet.lease SET renewed_at = renewed_at - ttl, expires_at = clock_timestamp()
WHERE id <> :healer::uuid AND state IN ('LIVE', 'DRAINING')
"""


class Start(NamedTuple):
    """A handler was called."""

    task: UUID
    attempt: int
    lease: UUID
    repeatable: bool


class Told(NamedTuple):
    """A holder learnt what became of its attempt."""

    task: UUID
    attempt: int
    lease: UUID
    outcome: Outcome
    accepted: bool


@dataclass(slots=True)
class Ledger:
    """What the actors did and were told: the world outside the database."""

    before: list[UUID] = field(default_factory=list)  # tasks that were there before anybody came on
    starts: list[Start] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    cancels: list[tuple[UUID, State, bool]] = field(default_factory=list)
    submitted: list[tuple[Submission, UUID, bool]] = field(default_factory=list)
    conflicts: list[Submission] = field(default_factory=list)
    requeued: list[UUID] = field(default_factory=list)
    discarded: list[UUID] = field(default_factory=list)


class World:
    """One schedule's rows and books."""

    def __init__(self, theatre: Theatre) -> None:
        self.theatre = theatre
        self.ledger = Ledger()
        self.story = Story()
        self.tasks: list[UUID] = []
        self.leases: dict[str, Lease] = {}
        self.held: dict[str, list[ClaimedTask]] = {}

    def name(self, task: UUID) -> str:
        if task not in self.tasks:
            self.tasks.append(task)
        return f"task {self.tasks.index(task) + 1}"

    async def lease(self, worker: str) -> Lease:
        """Return the worker's lease; a new worker registers one."""
        if worker not in self.leases:
            self.leases[worker] = await new_lease(self.theatre.watch, worker=worker, ttl=timedelta(minutes=1))
        return self.leases[worker]

    async def submit(self, *, repeatable: bool = True, **changes: object) -> UUID:
        """Write a task that waits."""
        name = "work" if repeatable else "once"
        task = await submit(self.theatre.watch, name=name, **({"max_attempts": 5 if repeatable else 1} | changes))
        self.tasks.append(task)
        self.ledger.before.append(task)
        return task

    async def hold(self, worker: str, free: int = 10) -> list[ClaimedTask]:
        """Let a worker claim what waits; its handlers have begun."""
        lease = await self.lease(worker)
        claimed = await claim.claim(self.theatre.watch, lease, LANES, HANDLERS, free)
        assert claimed is not None
        tasks = sorted(claimed.tasks, key=lambda task: task.id)
        self.held.setdefault(worker, []).extend(tasks)
        return tasks

    def start(self, tasks: Sequence[ClaimedTask]) -> None:
        self.ledger.starts += [Start(task.id, task.attempt, task.lease.id, task.repeatable) for task in tasks]

    async def heal(self) -> None:
        """All faults are over: leases that nobody keeps expire, one good worker reaps and runs what is left."""
        watch, healer = self.theatre.watch, self.theatre.healer
        await execute(watch, OUTLIVE, healer=healer.id)
        sweeper = reap.Sweeper(healer.id, NOW, NOW)
        for _ in range(ROUNDS):
            leases = (await reap.survey(watch)).leases
            expired = [lease.id for lease in leases if lease.expired and not lease.ended]
            marked = await reap.mark(watch, healer.id, expired) if expired else []
            ended = marked + [lease.id for lease in leases if lease.ended]
            if ended:
                await reap.sweep(watch, sweeper, ended)
            await expire.expire(watch, healer.id)
            claimed = await claim.claim(watch, healer, LANES, HANDLERS, 100)
            assert claimed is not None
            self.start(claimed.tasks)
            if claimed.tasks:
                await settle.succeed(watch, healer, [Settlement(task, Succeeded("1")) for task in claimed.tasks])
            if not claimed.tasks and not ended:
                return
        raise Violation(f"this does not heal\n{self.story}")
