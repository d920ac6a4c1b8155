"""Questions: read-only, bounded, and asked through SQLAlchemy, except the one that a waiting caller repeats."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, and_, func, select

from fleet.postgres.database import Statement
from fleet.postgres.tables import attempt, lease, queue, task
from fleet.task import State

RESULT = Statement("""
SELECT state, result::text, failure_code, failure_reason
FROM fleet.task
WHERE id = :id::uuid
""")

LIMIT = 100


class TaskResult(NamedTuple):
    """How a task stands: `result` is JSON text."""

    state: str
    result: str | None
    failure_code: str | None
    failure_reason: str | None


def tasks(
    *,
    state: State | None = None,
    queue_name: str | None = None,
    name: str | None = None,
    before: UUID | None = None,
    limit: int = LIMIT,
) -> Select[Any]:
    """Select tasks, the newest first, without arguments and results; `before` is the last id of the page before."""
    columns = (
        task.c.id, task.c.name, task.c.queue, task.c.priority, task.c.state, task.c.attempt, task.c.run_at,
        task.c.started_at, task.c.finished_at, task.c.failure_code, task.c.failure_reason, task.c.created_at,
    )  # fmt: skip
    conditions = [
        *([task.c.state == state.value] if state else []),
        *([task.c.queue == queue_name] if queue_name else []),
        *([task.c.name == name] if name else []),
        *([task.c.id < before] if before else []),
    ]
    return select(*columns).where(and_(True, *conditions)).order_by(task.c.id.desc()).limit(limit)  # noqa: FBT003


def one_task(task_id: UUID) -> Select[Any]:
    """Select everything about one task."""
    return select(task).where(task.c.id == task_id)


def history(task_id: UUID) -> Select[Any]:
    """Select the attempts of a task that did not simply succeed, and the late reports, in order."""
    return select(attempt).where(attempt.c.task_id == task_id).order_by(attempt.c.attempt, attempt.c.late)


def workers(*, every: bool = False, limit: int = LIMIT) -> Select[Any]:
    """Select the leases that are not over (`every`: all that are on record), the youngest first."""
    remaining = func.extract("epoch", lease.c.expires_at - func.clock_timestamp()).label("expires_in_seconds")
    columns = (
        lease.c.id, lease.c.worker, lease.c.host, lease.c.pid, lease.c.version, lease.c.queues, lease.c.slots,
        lease.c.state, lease.c.granted_at, lease.c.renewed_at, remaining,
    )  # fmt: skip
    question = select(*columns).order_by(lease.c.id.desc()).limit(limit)
    return question if every else question.where(lease.c.state.in_(("LIVE", "DRAINING")))


def queues() -> Select[Any]:
    """Select the queues, whether they are paused, and how many workers serve them."""
    serving = (
        select(func.count())
        .where(lease.c.state == "LIVE", lease.c.expires_at > func.clock_timestamp(), queue.c.name == func.any(lease.c.queues))
        .scalar_subquery()
    )
    return select(queue.c.name, queue.c.paused, serving.label("workers")).order_by(queue.c.name)


def dead_letters(
    *,
    queue_name: str | None = None,
    name: str | None = None,
    code: str | None = None,
    ids: tuple[UUID, ...] = (),
    limit: int | None = LIMIT,
) -> Select[Any]:
    """Select FAILED tasks that nobody has judged yet, the oldest first."""
    columns = (
        task.c.id, task.c.name, task.c.queue, task.c.attempt, task.c.failure_code, task.c.failure_reason, task.c.finished_at,
    )  # fmt: skip
    conditions = [
        *([task.c.queue == queue_name] if queue_name else []),
        *([task.c.name == name] if name else []),
        *([task.c.failure_code == code] if code else []),
        *([task.c.id.in_(ids)] if ids else []),
    ]
    return (
        select(*columns)
        .where(task.c.state == "FAILED", task.c.resolved_at.is_(None), *conditions)
        .order_by(task.c.id)
        .limit(limit)
    )


def plain(value: object) -> Any:
    """Turn a column's value into what JSON can say: ids and moments as text, durations in seconds."""
    match value:
        case UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case list():
            return [plain(member) for member in value]
    return value
