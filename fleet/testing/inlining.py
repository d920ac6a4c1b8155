"""Inline mode: what is submitted runs at once, in the caller, and no database is needed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID

from uuid_utils.compat import uuid7

from fleet.app import Fleet
from fleet.client import Client
from fleet.config import Settings
from fleet.context import Context, current_task
from fleet.errors import ConfigurationError, InvalidResult, NotFound
from fleet.handler import Handler, encode_result
from fleet.lease import Lease
from fleet.payload import clean_text
from fleet.postgres import inspect
from fleet.postgres.database import AsyncConnection, Row, Statement
from fleet.postgres.submit import SUBMIT, SUBMIT_ONCE
from fleet.retry import BackOff
from fleet.task import ClaimedTask, Errored, FailureCode, Outcome, State, Succeeded


@dataclass(slots=True)
class InlineTask:
    """A task that was submitted in inline mode, and how it ended."""

    id: UUID
    name: str
    queue: str
    args: str = field(repr=False)  #: JSON text
    attempts: int = 0
    state: State = State.QUEUED
    result: str | None = None  #: JSON text
    failure_code: str | None = None
    failure_reason: str | None = field(default=None, repr=False)


class InlineClient(Client):
    """Stands where an app's connections were. Runs handlers as a worker would, but for time limits and waits."""

    def __init__(self, handlers: Mapping[str, Handler], settings: Settings, state: Any) -> None:
        self.tasks: dict[UUID, InlineTask] = {}  #: in the order of their submission
        self._handlers = handlers
        self._settings = settings
        self._state = state
        self._keys: dict[tuple[str, str], tuple[UUID, str]] = {}
        self._lease = Lease(uuid7(), "inline", settings.ttl)

    async def query(self, statement: Statement, **values: Any) -> list[Row]:
        """Run what a submission submits; answer what became of it."""
        if statement is inspect.RESULT:
            return self._answer(values["id"])
        rows, new = self._take(statement, values)
        if new is not None:
            await self._run(new, values)
        return rows

    def query_sync(self, statement: Statement, **values: Any) -> list[Row]:
        """Do the same from plain code; an async handler gets an event loop of its own."""
        if statement is inspect.RESULT:
            return self._answer(values["id"])
        rows, new = self._take(statement, values)
        if new is not None:
            _complete(self._run(new, values), is_async=self._handlers[new.name].is_async)
        return rows

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """Refuse: there is no connection."""
        yield _refuse()

    async def close(self) -> None:
        """Do nothing: there is nothing open."""

    def _take(self, statement: Statement, values: Mapping[str, Any]) -> tuple[list[Row], InlineTask | None]:
        """Note a submission; return what the database would answer, and the task where it is a new one."""
        if statement not in (SUBMIT, SUBMIT_ONCE):
            _refuse()
        id_ = UUID(values["id"])
        if statement is SUBMIT_ONCE:
            first, fingerprint = self._keys.setdefault(
                (values["scope"], values["key"]), (id_, str(values["fingerprint"]))
            )
            if first != id_:
                return [(first, False, fingerprint == values["fingerprint"])], None
        task = InlineTask(id_, values["name"], values["queue"], values["args"])
        self.tasks[id_] = task
        return [(id_, True, True)], task

    def _answer(self, task_id: UUID) -> list[Row]:
        task = self.tasks.get(task_id)
        if task is None:
            raise NotFound(f"task {task_id} was not submitted in this inline block")
        return [(task.state.value, task.result, task.failure_code, task.failure_reason)]

    async def _run(self, task: InlineTask, values: Mapping[str, Any]) -> None:
        """Start it, and again as long as a worker would: what may be tried again waits for nothing."""
        handler, failures = self._handlers[task.name], 0
        repeatable = handler.idempotent and values["idempotent"] is not False
        while task.state is State.QUEUED:
            task.attempts += 1
            claimed = ClaimedTask(
                task.id, task.name, task.queue, values["priority"], datetime.now(UTC), task.attempts, repeatable,
                failures, 0, None, task.args, values["traceparent"], self._lease,
            )  # fmt: skip
            task.state = State.RUNNING
            outcome = await self._attempt(handler, claimed)
            failures += isinstance(outcome, Errored)
            _settle(task, outcome, budget_left=failures < values["max_attempts"])

    async def _attempt(self, handler: Handler, task: ClaimedTask) -> Outcome:
        settings, token = self._settings, current_task.set(task)
        try:
            arguments = handler.decode(task.args or "{}")
            if handler.context_name is not None:
                arguments[handler.context_name] = Context(task.id, task.name, task.queue, task.attempt, self._state)
            result = handler.function(**arguments)
            return Succeeded(encode_result(await result if handler.is_async else result, settings.result_bytes_max))
        except InvalidResult as error:
            return Errored(FailureCode.RESULT_REJECTED, clean_text(str(error), settings.error_bytes_max), None)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is the task's
            backoff = BackOff(settings.backoff_base, settings.backoff_cap)
            return handler.judge(task, error, backoff, settings.error_bytes_max)
        finally:
            current_task.reset(token)


@contextmanager
def inline(app: Fleet, *, state: Any = None) -> Iterator[InlineClient]:
    """Run what is submitted to `app` at once, in the caller, while the block lasts; needs no database.

    Arguments and results go through JSON, retries and budgets hold, and `ref.result()` answers, all as in production.
    Delays, time limits and the app's lifespan do not: `state` is what handlers find in `ctx.state`. What is submitted with
    `tx=` is only written there. Use plain `with`, also around code that awaits. Yields what has all `tasks` of the block.
    """
    before = app._client  # noqa: SLF001 - what stands in its place for a while
    client = app._client = InlineClient(app.handlers, app.settings, state)  # noqa: SLF001
    try:
        yield client
    finally:
        app._client = before  # noqa: SLF001


def _settle(task: InlineTask, outcome: Outcome, *, budget_left: bool) -> None:
    match outcome:
        case Succeeded():
            task.state, task.result = State.SUCCEEDED, outcome.result
        case Errored() if outcome.delay is not None and budget_left:
            task.state = State.QUEUED
        case Errored():
            task.state, task.failure_code, task.failure_reason = State.FAILED, outcome.code, outcome.reason


def _complete(running: Coroutine[Any, Any, None], *, is_async: bool) -> None:
    """Run a coroutine to its end from plain code. That of a plain handler never waits, so it needs no event loop."""
    if is_async:
        thread = threading.Thread(target=copy_context().run, args=(asyncio.run, running), name="fleet inline")
        thread.start()
        thread.join()
        return
    try:
        running.send(None)
    except StopIteration:
        return
    raise RuntimeError("a plain handler has waited for an event loop")


def _refuse() -> NoReturn:
    raise ConfigurationError(
        "inline mode runs single submissions and answers for their results; it has no database for anything else: "
        "use drained(app) with a database for submit_many, cancel and the like"
    )
