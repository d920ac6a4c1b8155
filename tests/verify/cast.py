"""Who acts in the scenario: workers and clients that call the verbs themselves, and write down what they see."""

import itertools
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from fleet.errors import IdempotencyConflict
from fleet.events import Events, LeaseGranted, TaskFenced, TasksClaimed, TaskSettled, TaskStarted
from fleet.lease import Lease
from fleet.postgres import cancel, claim, dead_letter, heartbeat, settle
from fleet.postgres.database import AsyncConnection, run
from fleet.postgres.submit import Submission, accepted, statement
from fleet.schema import SCHEMA_MAX, SCHEMA_MIN
from fleet.task import ClaimedTask, Outcome, Settlement, Succeeded, Verdict
from fleet.verify.history import Recorder, record_events

TTL = timedelta(minutes=5)
_pids = itertools.count(70_001)


class Actor:
    """One worker: it claims, starts and settles as a real one does, one statement at a time."""

    def __init__(self, connection: AsyncConnection, events: Events, lease: Lease, names: dict[str, bool]) -> None:
        self.connection = connection
        self.events = events
        self.lease = lease
        self.names = names
        self.pid = next(_pids)

    @classmethod
    async def enter(cls, connection: AsyncConnection, folder: Path, queue: str, names: dict[str, bool]) -> "Actor":
        lease, events = Lease(uuid7(), "actor", TTL), Events()
        actor = cls(connection, events, lease, names)
        record_events(events, folder, f"worker {actor.pid}", handlers=names)
        await run(
            connection, heartbeat.REGISTER, lease=lease.id, worker=lease.worker, host="host", pid=actor.pid, version="test",
            queues=[queue], slots=8, ttl=TTL, schema_min=SCHEMA_MIN, schema_max=SCHEMA_MAX,
        )  # fmt: skip
        events.emit(LeaseGranted(lease))
        return actor

    async def claim(self, queue: str, free: int = 8, *, connection: AsyncConnection | None = None) -> list[ClaimedTask]:
        """Claim without starting anything; no task where the lease is refused, too."""
        lanes = [claim.Lane(queue, priority, claim.HEAD) for priority in range(10)]
        claimed = await claim.claim(connection or self.connection, self.lease, lanes, self.names, free)
        tasks = claimed.tasks if claimed else []
        self.events.emit(TasksClaimed(len(tasks), 0.0))
        return tasks

    async def take(self, queue: str, *, connection: AsyncConnection | None = None) -> list[ClaimedTask]:
        """Claim, and start everything."""
        tasks = await self.claim(queue, connection=connection)
        self.start(tasks)
        return tasks

    def start(self, tasks: list[ClaimedTask]) -> None:
        for task in tasks:
            self.events.emit(TaskStarted(task))

    async def report(self, tasks: list[ClaimedTask], outcome: Outcome) -> None:
        """Settle, ask again where it was refused, and keep what is refused twice."""
        write = settle.succeed if isinstance(outcome, Succeeded) else settle.give_back
        for task in tasks:
            settlement = Settlement(task, outcome)
            for _ in range(2):
                answers = await write(self.connection, self.lease, [settlement])
                verdict, state = answers[task.id, task.attempt]
                if verdict is not Verdict.FENCED:
                    self.events.emit(TaskSettled(settlement, state))
                    break
            else:
                await settle.record_late(self.connection, self.lease, [settlement])
                self.events.emit(TaskFenced(settlement))

    async def expire(self) -> None:
        """Let the lease's time be over, without waiting for it."""
        await self.connection.execute(
            "UPDATE fleet.lease SET renewed_at = renewed_at - ttl, expires_at = clock_timestamp() WHERE id = %s",
            (self.lease.id,),
        )


class Client:
    """Asks for things, and writes down before and after what it asked and heard."""

    def __init__(self, connection: AsyncConnection, folder: Path) -> None:
        self.connection = connection
        self.recorder = Recorder(folder, "client")
        self._ops = itertools.count(1)

    async def submit(
        self, queue: str, *, name: str = "work", key: str | None = None, lost: bool = False, **more: Any
    ) -> UUID:
        """Return the id that this submission brought along; `lost`: the answer does not come through."""
        args = more.pop("args", {"text": queue})
        submission = Submission(uuid7(), queue, name, json.dumps(args), **({"max_attempts": 5} | more), key=key)
        op = f"op-{next(self._ops)}"
        self.recorder.write(
            "submit",
            phase="invoke",
            op=op,
            name=name,
            args=args,
            key=key,
            queue=queue,
            idempotent=submission.idempotent,
        )
        query, values = statement(submission)
        row = (await run(self.connection, query, **values))[0]
        if lost:
            self.recorder.write("submit", phase="info", op=op)
            return submission.id
        try:
            task, created = accepted(submission, row)
        except IdempotencyConflict:
            self.recorder.write("submit", phase="fail", op=op)
        else:
            self.recorder.write("submit", phase="ok", op=op, task=task, created=created)
        return submission.id

    async def cancel(self, task: UUID) -> None:
        op = f"op-{next(self._ops)}"
        self.recorder.write("cancel", phase="invoke", op=op, task=task)
        answer = await cancel.cancel(self.connection, [task], "client")
        self.recorder.write("cancel", phase="ok", op=op, task=task, answer=answer[task][0].value)

    async def requeue(self, task: UUID, attempt: int) -> None:
        op = f"op-{next(self._ops)}"
        self.recorder.write("requeue", phase="invoke", op=op, task=task)
        moved = await dead_letter.requeue(self.connection, {task: attempt}, "client")
        self.recorder.write("requeue", phase="ok" if moved else "fail", op=op, task=task)
