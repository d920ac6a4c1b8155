"""`/tasks`: submit, look at, list and cancel tasks."""

import re
from typing import Annotated, Any
from uuid import UUID

from pydantic import AwareDatetime, Field, StringConstraints

from fleet.errors import NotFound
from fleet.http.api import Api
from fleet.http.callers import Caller
from fleet.http.order import Order, submission
from fleet.http.problem import Problem
from fleet.http.view import Given, Page, Paged, Text, View, page
from fleet.postgres import inspect
from fleet.postgres.cancel import cancel
from fleet.postgres.submit import accepted, statement
from fleet.task import FailureCode, State

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,200})?")


class TaskPath(Given):
    """Which task."""

    id: UUID


class SubmitHeaders(Given):
    """What makes a submission safe to repeat."""

    idempotency_key: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,255}$")] | None = Field(
        default=None,
        description="The same key with the same request makes no second task. 1 to 255 visible ASCII characters.",
    )
    traceparent: str | None = Field(
        default=None,
        description="The caller's span, by W3C Trace Context: traced attempts link to it. A malformed one is ignored.",
    )


class Accepted(View):
    """A task that is in the database, committed. `created`: by this very request, not by one before with its key.

    `state` is left out where that one has ended so long ago that it was pruned.
    """

    id: UUID
    name: str
    queue: str
    state: State | None = None
    created: bool

    def headers(self, root: str) -> dict[str, str]:
        return {"Location": f"{root}/tasks/{self.id}"}


class TaskSummary(View):
    """One task, without its arguments and its result."""

    id: UUID
    name: str
    queue: str
    priority: int
    state: State
    attempt: int = Field(description="How often it was claimed.")
    created_at: AwareDatetime
    run_at: AwareDatetime = Field(description="Not started before.")
    started_at: AwareDatetime | None = None
    finished_at: AwareDatetime | None = None
    failure_code: FailureCode | None = None
    failure_reason: str | None = None


class Attempt(View):
    """An attempt that did not simply succeed; `late`: a report that was refused, because somebody else had ended it."""

    attempt: int
    late: bool
    outcome: str
    detail: str | None = None
    at: AwareDatetime
    lease_id: UUID
    worker: str | None = None


class TaskDetail(TaskSummary):
    """Everything about one task; `worker`, `host` and `pid` say where it runs now."""

    args: dict[str, Any]
    result: Any = Field(default=None, description="What the handler returned: only where it SUCCEEDED.")
    expires_at: AwareDatetime | None = None
    timeout_seconds: float | None = None
    idempotent: bool | None = Field(default=None, description="What the submitter said.")
    repeatable: bool = Field(description="Whether it is run again by itself when its worker vanishes.")
    cancel_requested: bool
    failures: int
    losses: int
    max_attempts: int
    max_losses: int
    resolved_at: AwareDatetime | None = None
    lease_id: UUID | None = None
    worker: str | None = None
    host: str | None = None
    pid: int | None = None
    attempts: list[Attempt]


class TaskFilter(Paged):
    """Which tasks."""

    state: State | None = None
    queue: Text | None = None
    name: Text | None = None


class Cancelled(View):
    """CANCELLED: it will not run. RUNNING: its worker is asked to stop it."""

    id: UUID
    state: State
    changed: bool = Field(description="False: it had been cancelled before.")


async def submit(api: Api, headers: SubmitHeaders, body: Order) -> Accepted:
    """Submit a task. The answer comes after the commit."""
    wanted = submission(api.app, body, headers.idempotency_key)
    if headers.traceparent is not None and _TRACEPARENT.fullmatch(headers.traceparent):
        wanted = wanted._replace(traceparent=headers.traceparent)
    query, values = statement(wanted)
    task_id, created = accepted(wanted, (await api.app.client.query(query, **values))[0])
    if created:
        return Accepted(id=task_id, name=wanted.name, queue=wanted.queue, state=State.QUEUED, created=True)
    found = await api.ask(inspect.task_state(task_id))
    told = {"id": task_id, "name": wanted.name, "queue": wanted.queue, "created": False}
    return Accepted.of(told | (found[0] if found else {}))


async def show(api: Api, path: TaskPath) -> TaskDetail:
    """Show everything about one task, the attempts that failed, and reports that came too late."""
    found = await api.ask(inspect.one_task(path.id))
    if not found:
        raise NotFound(f"there is no task {path.id}; it was never committed, or it was pruned")
    row = found[0]
    attempts = [Attempt.of(each) for each in await api.ask(inspect.history(path.id))] if row["attempt"] else []
    timeout_seconds = None if row["timeout"] is None else row["timeout"].total_seconds()
    detail = TaskDetail.of(row | {"timeout_seconds": timeout_seconds, "attempts": attempts})
    if detail.state is State.SUCCEEDED:
        detail.result = row["result"]  # also where it is null: that is what the handler returned
    return detail


async def list_(api: Api, query: TaskFilter) -> Page[TaskSummary]:
    """List tasks, the newest first."""
    question = inspect.tasks(
        state=query.state, queue_name=query.queue, name=query.name, before=query.cursor, limit=query.limit + 1
    )
    return Page[TaskSummary](**page(TaskSummary, await api.ask(question), query.limit))


async def cancel_one(api: Api, caller: Caller, path: TaskPath) -> Cancelled:
    """Cancel a task: at once before it starts; the worker of a running one is asked to stop it."""
    answer = await api.act(lambda connection: cancel(connection, [path.id], caller.name))
    if path.id not in answer:
        raise NotFound(f"there is no task {path.id}; it was never committed, or it was pruned")
    state, changed = answer[path.id]
    if not changed and state is not State.CANCELLED:
        raise Problem(409, "too_late", f"The task has ended: it is {state}.")
    return Cancelled(id=path.id, state=state, changed=changed)
