"""A fixed number of long-lived slots, each running one handler after another. Nothing here touches the database."""

import asyncio
import contextvars
import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio

from fleet.config import Settings
from fleet.context import Context, current_task
from fleet.errors import InvalidResult
from fleet.events import Events, TaskStarted, TaskStuck
from fleet.faultpoint import faultpoint
from fleet.handler import Handler, describe, encode_result
from fleet.lease import Lease
from fleet.payload import clean_text
from fleet.retry import BackOff
from fleet.task import Cancelled, ClaimedTask, Errored, FailureCode, Outcome, Released, Settlement, Succeeded

if TYPE_CHECKING:
    from fleet.tracing.spans import Spans


class Stop(Enum):
    """Why a running handler is asked to end."""

    CANCEL = "the task was cancelled"
    TIMEOUT = "the handler ran past its time limit"
    LEASE = "the worker could not renew its lease in time"
    DRAIN = "the worker was shut down before the handler ended"


@dataclass(slots=True, eq=False)
class Execution:
    """One handler at work."""

    task: ClaimedTask
    handler: Handler
    stop: Stop | None = None
    settled: bool = False  # told to the settler before the handler ended
    seconds: float | None = None  # how long the handler ran, once it has ended
    runner: "asyncio.Task[Any] | None" = None  # set only while an async handler is being awaited

    def stopping(self) -> bool:
        return self.stop is not None

    def interrupt(self, why: Stop) -> None:
        """Ask the handler to end: an async one is cancelled, a thread can only be told."""
        if self.stop is None:
            self.stop = why
            if self.runner is not None:
                self.runner.cancel()


class Slots:
    """Runs claimed tasks and reports how each ended to `report`; `refusal` is asked right before each start."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        settings: Settings,
        events: Events,
        *,
        report: Callable[[Settlement], None],
        refusal: Callable[[Lease], Stop | None],
        fetch_args: Callable[[ClaimedTask], Awaitable[str | None]],
        on_stuck: Callable[[ClaimedTask], None],
        spans: "Spans | None" = None,
    ) -> None:
        self.state: Any = None  # what the app's lifespan yielded
        self.changed = asyncio.Event()  # set whenever a slot has become free
        self._handlers = handlers
        self._settings = settings
        self._events = events
        self._report = report
        self._refusal = refusal
        self._fetch_args = fetch_args
        self._on_stuck = on_stuck
        self._spans = spans
        self._backoff = BackOff(settings.backoff_base, settings.backoff_cap)
        self._ending = False
        self._waiting: deque[ClaimedTask] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._running: set[Execution] = set()
        self._threads = ThreadPoolExecutor(settings.slots, thread_name_prefix="fleet-handler")

    @property
    def free(self) -> int:
        """How many tasks could start at once."""
        return self._settings.slots - len(self._running) - len(self._waiting)

    @property
    def taken(self) -> int:
        """How many slots have a task."""
        return min(len(self._running) + len(self._waiting), self._settings.slots)

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    def held(self) -> list[UUID]:
        """The ids of all tasks that are here."""
        return [execution.task.id for execution in self._running] + [task.id for task in self._waiting]

    def executions(self) -> list[Execution]:
        return list(self._running)

    def put(self, tasks: Sequence[ClaimedTask]) -> None:
        """Start these tasks: there must be as many free slots."""
        self._waiting.extend(tasks)
        for _ in range(min(len(tasks), len(self._idle))):
            woken = self._idle.popleft()
            if not woken.done():
                woken.set_result(None)

    def hand_back_waiting(self, why: str) -> None:
        """Release every task that has not started."""
        while self._waiting:
            self._report(Settlement(self._waiting.popleft(), Released(why)))
        self.changed.set()

    def interrupt(self, why: Stop, which: Callable[[Execution], bool]) -> None:
        """Ask those running handlers to end."""
        for execution in self.executions():
            if which(execution):
                execution.interrupt(why)

    def settle_early(self, execution: Execution, outcome: Outcome) -> None:
        """Report the end of an attempt whose handler cannot be stopped; its own report will come late."""
        if not execution.settled:
            execution.settled = True
            self._report(Settlement(execution.task, outcome))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self) -> None:
        """Be all slots, for ever. Cancelled, it cancels each once, and leaves behind one whose handler takes no notice.

        So they are no children of a task group: it would cancel such a handler again and again, and never end.
        """
        slots = [
            asyncio.create_task(self._slot(), name=f"fleet slot {number}") for number in range(self._settings.slots)
        ]
        try:
            ended, _ = await asyncio.wait(slots, return_when=asyncio.FIRST_COMPLETED)
            for slot in ended:
                slot.result()
        finally:
            self._ending = True
            for slot in slots:
                slot.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait(slots, timeout=self._settings.poll.total_seconds())

    async def _slot(self) -> None:
        loop, runner = asyncio.get_running_loop(), asyncio.current_task()
        assert runner is not None  # noqa: S101 - a coroutine runs in a task
        while not self._ending:
            while not self._waiting:
                woken = loop.create_future()
                self._idle.append(woken)
                await woken
            task = self._waiting.popleft()
            execution = Execution(task, self._handlers[task.name])
            self._running.add(execution)
            try:
                outcome = await self._start(execution, runner)
            finally:
                self._running.remove(execution)
            if outcome is not None:
                self._report(Settlement(task, outcome, execution.seconds))
            self.changed.set()

    async def _start(self, execution: Execution, runner: "asyncio.Task[Any]") -> Outcome | None:
        if execution.task.args is None:
            text = await self._fetch_args(execution.task)
            if text is None:
                return None  # the attempt is not ours any more
            execution.task = execution.task._replace(args=text)
        faultpoint("start.before", execution.task.name)
        refused = execution.stop or self._refusal(execution.task.lease)
        if refused is not None:
            return Released(refused.value)
        self._events.emit(TaskStarted(execution.task))
        watch, began = self._watch(execution), time.monotonic()
        try:
            if self._spans is None:
                return await self._execute(execution, runner)
            with self._spans.running(execution.task) as ended:
                outcome = await self._execute(execution, runner)
                ended(outcome)
                return outcome
        finally:
            execution.seconds = time.monotonic() - began
            if watch is not None:
                watch.cancel()

    def _watch(self, execution: Execution) -> asyncio.TimerHandle | None:
        limit = execution.task.timeout or execution.handler.timeout
        if limit is None:
            return None
        return asyncio.get_running_loop().call_later(limit.total_seconds(), self._time_out, execution)

    def _time_out(self, execution: Execution) -> None:
        execution.interrupt(Stop.TIMEOUT)
        asyncio.get_running_loop().call_later(self._settings.margin.total_seconds(), self._give_up, execution)

    def _give_up(self, execution: Execution) -> None:
        if execution in self._running:
            self.settle_early(execution, self._stopped(execution, Stop.TIMEOUT))
            self._events.emit(TaskStuck(execution.task))
            self._on_stuck(execution.task)

    async def _execute(self, execution: Execution, runner: "asyncio.Task[Any]") -> Outcome:
        task, handler = execution.task, execution.handler
        current_task.set(task)
        try:
            result = await self._call(execution, runner)
            return Succeeded(encode_result(result, self._settings.result_bytes_max))
        except asyncio.CancelledError as error:
            if execution.stop is not None:
                return self._stopped(execution, execution.stop)
            if runner.cancelling():
                raise  # it is the slot itself that ends
            return handler.judge(task, error, self._backoff, self._settings.error_bytes_max)
        except InvalidResult as error:
            reason = clean_text(str(error), self._settings.error_bytes_max)
            return Errored(FailureCode.RESULT_REJECTED, reason, None)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is the task's, never the worker's
            if execution.stop is not None and handler.is_async:
                return self._stopped(execution, execution.stop, error)
            return handler.judge(task, error, self._backoff, self._settings.error_bytes_max)

    async def _call(self, execution: Execution, runner: "asyncio.Task[Any]") -> Any:
        task, handler = execution.task, execution.handler
        arguments = handler.decode(task.args or "{}")
        if handler.context_name is not None:
            arguments[handler.context_name] = Context(
                task.id, task.name, task.queue, task.attempt, self.state, execution.stopping
            )
        if not handler.is_async:
            call = functools.partial(contextvars.copy_context().run, _caught, handler, arguments)
            result, error = await asyncio.get_running_loop().run_in_executor(self._threads, call)
            if error is not None:
                raise error
            return result
        execution.runner = runner
        faultpoint("handler.enter", task.name)
        try:
            return await handler.function(**arguments)
        finally:
            faultpoint("handler.leave", task.name)
            execution.runner = None
            if runner.cancelling() and not self._ending:
                await _calm(runner)

    def _stopped(self, execution: Execution, why: Stop, error: BaseException | None = None) -> Outcome:
        """Say what becomes of an attempt that was ended from outside."""
        task, reason = execution.task, why.value
        if error is not None:
            reason = f"{reason}; it then raised {describe(error, self._settings.error_bytes_max // 2)}"
        match why:
            case Stop.CANCEL:
                return Cancelled(reason)
            case Stop.TIMEOUT:
                limit = task.timeout or execution.handler.timeout or timedelta(0)
                delay = self._backoff.delay(task.failures, 0.5) if task.repeatable else None
                return Errored(FailureCode.TIMEOUT, f"{reason} of {limit.total_seconds():g} s", delay)
            case Stop.LEASE:
                return Released(reason)
            case Stop.DRAIN:
                return Released(reason) if task.repeatable else Errored(FailureCode.INTERRUPTED, reason, None)


def _caught(handler: Handler, arguments: Mapping[str, Any]) -> tuple[Any, BaseException | None]:
    """Call it, and return what it raised: a future cannot carry StopIteration or GeneratorExit."""
    try:
        faultpoint("handler.enter", handler.name)
        try:
            return handler.function(**arguments), None
        finally:
            faultpoint("handler.leave", handler.name)
    except BaseException as error:  # noqa: BLE001 - it is raised again in the slot
        return None, error


async def _calm(runner: "asyncio.Task[Any]") -> None:
    """Take back what cancelled the handler, even where it has not arrived yet: the slot itself goes on."""
    while runner.cancelling():
        runner.uncancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
