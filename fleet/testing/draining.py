"""Drained mode: a real worker, on a real database, until nothing that is due is left."""

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from fleet.app import Fleet
from fleet.client import Seconds, as_duration
from fleet.events import Event, Events, TaskFenced, TaskSettled
from fleet.postgres import scratch
from fleet.task import Cancelled, Errored, Outcome, Released, Settlement, State, Succeeded

_POLL_SECONDS = 0.02
_WITHIN_SECONDS = 1.0


class Ran(NamedTuple):
    """One attempt that a drained worker ran, and where the task was afterwards."""

    id: UUID
    name: str
    attempt: int
    state: State  #: QUEUED where it waits for its next try
    outcome: Outcome
    accepted: bool = True  #: False: the report was refused, because somebody else had ended the attempt

    @property
    def result(self) -> Any:
        """What the handler returned, as JSON gives it back; None where it did not return."""
        return json.loads(self.outcome.result) if isinstance(self.outcome, Succeeded) else None

    @property
    def error(self) -> str:
        """Why the attempt did not succeed: empty where it did."""
        return self.outcome.reason if isinstance(self.outcome, Errored | Released | Cancelled) else ""


async def drained(
    app: Fleet, *, queues: Sequence[str] = (), due_within: Seconds = _WITHIN_SECONDS, seconds: float = 30.0
) -> list[Ran]:
    """Run one worker of `app` until no task of its handlers runs or is due; return each attempt that ended, in order.

    What falls due within `due_within`, such as a first retry, is waited for; what is due later is left where it is. Raises
    TimeoutError where it takes longer than `seconds`. Closes the connections that the app has opened in this event loop.
    """
    ran: list[Ran] = []
    events = Events()
    events.subscribe(lambda event: _note(event, ran))
    engine = app.database.async_engine("testing", size=1)
    try:
        async with app.worker(queues=queues, events=events, name="drained") as worker:
            await _nothing_due(app, engine, worker.queues, as_duration(due_within), time.monotonic() + seconds)
    finally:
        await engine.dispose()
        await app.close()
    return ran


async def _nothing_due(
    app: Fleet, engine: AsyncEngine, queues: Sequence[str], within: timedelta, deadline: float
) -> None:
    question = scratch.due(list(app.handlers), list(queues), within)
    while True:
        async with engine.connect() as connection:
            due = (await connection.execute(question)).scalar_one()
        if not due:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{due} tasks are due or still run; see `fleet task list`, and due_within=")
        await asyncio.sleep(_POLL_SECONDS)


def _note(event: Event, ran: list[Ran]) -> None:
    if isinstance(event, TaskSettled):
        ran.append(_ran(event.settlement, event.state))
    elif isinstance(event, TaskFenced):
        ran.append(_ran(event.settlement, State.RUNNING)._replace(accepted=False))


def _ran(settlement: Settlement, state: State) -> Ran:
    task = settlement.task
    return Ran(task.id, task.name, task.attempt, state, settlement.outcome)
