"""The mixed load: clients that submit, cancel and mend, and that ask again with the same key where the answer was lost."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from fleet import Fleet
from fleet.app import Task
from fleet.client import TaskRef
from fleet.errors import DatabaseUnreachable, FleetError, OutcomeUnknown
from fleet.postgres.database import AsyncConnection
from fleet.verify.history import Recorder
from tests.chaos import program

EVERY_SECONDS = 0.06
BATCH_MAX = 40
STRANGERS = 5
Make = Callable[[random.Random, int], tuple[Task[..., Any], dict[str, Any]]]

TEXTS = ("plain", "žluťoučký kůň", "\N{PARTY POPPER}", "<b>&amp;</b>", "line\nline", '"quoted"\\', "\x1b[31m")

MAKES: list[tuple[int, Make]] = [
    (30, lambda chance, n: (program.quick, {"number": n, "text": chance.choice(TEXTS)})),
    (25, lambda chance, n: (program.once, {"number": n, "milliseconds": chance.choice((0, 50, 400))})),
    (15, lambda chance, n: (program.slow, {"number": n, "milliseconds": chance.choice((20, 200, 1500))})),
    (8, lambda chance, n: (program.once_in_thread, {"number": n, "milliseconds": chance.choice((0, 100))})),
    (8, lambda chance, n: (program.flaky, {"number": n})),
    (5, lambda chance, n: (program.asks_again, {"number": n})),
    (3, lambda chance, n: (program.gives_up, {"number": n})),
]


class Client:
    """One submitter with its own connections, its own record, and its own dice."""

    def __init__(self, name: str, url: str, folder: Path, seed: int, settings: Any) -> None:
        self.accepted: list[UUID] = []
        self._chance = random.Random(f"{seed} {name}")
        self._record = Recorder(folder, name)
        self._name = name
        self._numbers = itertools.count(1)
        self._recent: deque[UUID] = deque(maxlen=50)
        self._app = Fleet(url, settings=settings)
        self._url = url

    async def run(self, ended: asyncio.Event) -> None:
        """Do one thing after the other, until `ended` is set."""
        deeds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (60, self.submit_one),
            (8, self.submit_batch),
            (8, self.submit_in_transaction),
            (8, self.cancel_one),
        ]
        weights, actions = [weight for weight, _ in deeds], [deed for _, deed in deeds]
        async with self._app:
            while not ended.is_set():
                await self._chance.choices(actions, weights)[0]()
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), self._chance.expovariate(1 / EVERY_SECONDS))

    async def submit(self, task: Task[..., Any], arguments: dict[str, Any], **options: Any) -> UUID | None:
        """Submit with a key until it is answered; whatever is lost on the way, there is one task."""
        number = next(self._numbers)
        bound: Task[..., Any] = Task(self._app, task.handler).options(
            idempotency_key=f"{self._name}-{number}", **options
        )
        for attempt in itertools.count(1):
            op = f"{self._name}-{number}.{attempt}"
            facts: dict[str, Any] = {"name": task.handler.name, "args": arguments, "key": f"{self._name}-{number}"}
            facts |= {"queue": options.get("queue", task.handler.queue), "idempotent": task.handler.idempotent}
            self._record.write("submit", phase="invoke", op=op, **facts)
            try:
                ref = await bound.submit(**arguments)
            except OutcomeUnknown as error:
                self._record.write("submit", phase="info", op=op, error=str(error))
            except DatabaseUnreachable as error:
                self._record.write("submit", phase="fail", op=op, error=str(error))
            else:
                self._record.write("submit", phase="ok", op=op, task=str(ref.id))
                self.accepted.append(ref.id)
                self._recent.append(ref.id)
                return ref.id
            await asyncio.sleep(self._chance.uniform(0.05, 0.3))
        return None

    async def submit_one(self) -> None:
        task, arguments = self._any()
        options: dict[str, Any] = {}
        if self._chance.random() < 0.2:
            options["priority"] = self._chance.randrange(10)
        if self._chance.random() < 0.1:
            options["delay"] = self._chance.uniform(0, 3)
        if self._chance.random() < 0.1:
            options["queue"] = "urgent"
        await self.submit(task, arguments, **options)

    async def submit_batch(self) -> None:
        """All of them or none; where the answer is lost, nobody can say which, and nobody asks again."""
        count = self._chance.randint(2, BATCH_MAX)
        items = [{"number": next(self._numbers), "text": self._chance.choice(TEXTS)} for _ in range(count)]
        ops = [f"{self._name}-batch-{item['number']}" for item in items]
        facts = {"name": "quick", "key": None, "queue": "default", "idempotent": True}
        for op, item in zip(ops, items, strict=True):
            self._record.write("submit", phase="invoke", op=op, args=item, **facts)
        try:
            refs: list[TaskRef[Any]] = await self._app.submit_many(Task(self._app, program.quick.handler), items)
        except DatabaseUnreachable as error:
            phase = "info" if isinstance(error, OutcomeUnknown) else "fail"
            for op in ops:
                self._record.write("submit", phase=phase, op=op, error=str(error))
            return
        for op, ref in zip(ops, refs, strict=True):
            self._record.write("submit", phase="ok", op=op, task=str(ref.id))
            self.accepted.append(ref.id)

    async def submit_in_transaction(self) -> None:
        """The task is there if and only if the caller's own transaction commits."""
        task, arguments = self._any()
        commits = self._chance.random() < 0.6
        op = f"{self._name}-tx-{next(self._numbers)}"
        facts = {"name": task.handler.name, "args": arguments, "key": None, "queue": task.handler.queue}
        self._record.write("submit", phase="invoke", op=op, idempotent=task.handler.idempotent, **facts)
        phase, written = "fail", None
        try:
            async with await AsyncConnection.connect(self._url, connect_timeout=2) as connection:
                bound: Task[..., Any] = Task(self._app, task.handler).options(tx=connection)
                written = (await bound.submit(**arguments)).id
                if commits:
                    phase = "info"  # from here on, only an answer can tell
                    await connection.commit()
                    phase = "ok"
                else:
                    await connection.rollback()
        except (psycopg.Error, FleetError) as error:
            self._record.write("submit", phase=phase, op=op, task=str(written) if written else None, error=str(error))
            return
        self._record.write("submit", phase=phase, op=op, task=str(written))
        if phase == "ok" and written is not None:
            self.accepted.append(written)

    async def cancel_one(self) -> None:
        if self._recent:
            await self._cancel(self._chance.choice(self._recent))

    async def _cancel(self, task: UUID) -> None:
        op = f"{self._name}-cancel-{next(self._numbers)}"
        self._record.write("cancel", phase="invoke", op=op, task=str(task))
        try:
            state = await TaskRef(task, self._app.client).cancel()
        except DatabaseUnreachable as error:
            self._record.write("cancel", phase="info", op=op, task=str(task), error=str(error))
        else:
            answer = {"CANCELLED": "cancelled", "RUNNING": "requested"}.get(state.value, "too late")
            self._record.write("cancel", phase="ok", op=op, task=str(task), answer=answer)

    def _any(self) -> tuple[Task[..., Any], dict[str, Any]]:
        weights, makes = [weight for weight, _ in MAKES], [make for _, make in MAKES]
        return self._chance.choices(makes, weights)[0](self._chance, next(self._numbers))


class Operator(Client):
    """The same, straight to the server, and with what only some do: submit poison, and what no worker can run."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._strangers: list[UUID] = []

    async def submit_poison(self) -> UUID | None:
        return await self.submit(program.poison, {"number": next(self._numbers)})

    async def submit_one(self) -> None:
        if len(self._strangers) < STRANGERS:
            stranger = await self.submit(program.nobody, {"number": next(self._numbers)})
            self._strangers.extend([stranger] if stranger else [])
        await super().submit_one()

    async def cancel_strangers(self) -> None:
        """What nobody has a handler for has waited all the time, and ends now."""
        async with self._app:
            for task in self._strangers:
                await self._cancel(task)
