"""Questions: read-only, bounded, and asked through SQLAlchemy, except the one that a waiting caller repeats."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Float, Select, and_, cast, extract, false, func, literal, select, union

from fleet.postgres.database import Statement
from fleet.postgres.tables import attempt, lease, queue, task
from fleet.task import State

RESULT = Statement("""
SELECT state, result::text, failure_code, failure_reason
FROM fleet.task
WHERE id = :id::uuid
""")

LIMIT = 100
QUEUED_MAX = 10_000  # tasks that wait in one queue are counted so far and no further
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    code: str | None = None,
    worker: str | None = None,
    since: datetime | None = None,
    before: UUID | None = None,
    limit: int = LIMIT,
) -> Select[Any]:
    """Select tasks, the newest first, without arguments and results; `before` is the last id of the page before.

    `worker`, a name or the id of a lease, selects what it holds now; `since`, what was submitted no earlier.
    """
    columns = (
        task.c.id, task.c.name, task.c.queue, task.c.priority, task.c.state, task.c.attempt, task.c.run_at,
        task.c.started_at, task.c.finished_at, task.c.failure_code, task.c.failure_reason, task.c.created_at,
    )  # fmt: skip
    conditions = [
        *([task.c.state == state.value] if state is not None else []),
        *([task.c.queue == queue_name] if queue_name is not None else []),
        *([task.c.name == name] if name is not None else []),
        *([task.c.state == "FAILED", task.c.failure_code == code] if code is not None else []),
        *([task.c.state == "RUNNING", task.c.lease_id.in_(_leases_of(worker))] if worker is not None else []),
        *([task.c.id >= first_id(since)] if since is not None else []),
        *([task.c.id < before] if before is not None else []),
    ]
    return select(*columns).where(and_(True, *conditions)).order_by(task.c.id.desc()).limit(limit)


def first_id(moment: datetime) -> UUID:
    """Return the least id that can be given at this moment: ids begin with the milliseconds since 1970."""
    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
    return UUID(int=min(max(milliseconds, 0), 2**48 - 1) << 80)


def _leases_of(worker: str) -> Select[Any]:
    try:
        return select(lease.c.id).where(lease.c.id == UUID(worker))
    except ValueError:
        return select(lease.c.id).where(lease.c.worker == worker)


def one_task(task_id: UUID) -> Select[Any]:
    """Select everything about one task and, while it runs, where."""
    return (
        select(task, lease.c.worker, lease.c.host, lease.c.pid)
        .outerjoin(lease, lease.c.id == task.c.lease_id)
        .where(task.c.id == task_id)
    )


def task_state(task_id: UUID) -> Select[Any]:
    """Select only where a task is now."""
    return select(task.c.id, task.c.state).where(task.c.id == task_id)


def history(task_id: UUID) -> Select[Any]:
    """Select the attempts of a task that did not simply succeed, and the late reports, in order."""
    return (
        select(attempt, lease.c.worker)
        .outerjoin(lease, lease.c.id == attempt.c.lease_id)
        .where(attempt.c.task_id == task_id)
        .order_by(attempt.c.attempt, attempt.c.late)
    )


def workers(
    *,
    every: bool = False,
    lease_id: UUID | None = None,
    name: str | None = None,
    before: UUID | None = None,
    limit: int = LIMIT,
) -> Select[Any]:
    """Select the leases that are not over (`every`: all that are on record), the youngest first."""
    remaining = cast(extract("epoch", lease.c.expires_at - func.clock_timestamp()), Float).label("expires_in_seconds")
    running = select(func.count()).where(task.c.lease_id == lease.c.id, task.c.state == "RUNNING").scalar_subquery()
    columns = (
        lease.c.id, lease.c.worker, lease.c.host, lease.c.pid, lease.c.version, lease.c.queues, lease.c.slots,
        running.label("running"), lease.c.state, lease.c.granted_at, lease.c.renewed_at, remaining,
    )  # fmt: skip
    conditions = [
        *([] if every else [lease.c.state.in_(("LIVE", "DRAINING"))]),
        *([lease.c.id == lease_id] if lease_id is not None else []),
        *([lease.c.worker == name] if name is not None else []),
        *([lease.c.id < before] if before is not None else []),
    ]
    return select(*columns).where(and_(True, *conditions)).order_by(lease.c.id.desc()).limit(limit)


def live_workers() -> Select[Any]:
    """Select the number of leases that may claim now."""
    return select(func.count().label("workers")).where(
        lease.c.state == "LIVE", lease.c.expires_at > func.clock_timestamp()
    )


def queues() -> Select[Any]:
    """Select the queues that are known or waited in: paused or not, how many workers serve them, how many tasks wait.

    `retention_seconds` is null where the settings say it; `queued` is counted up to QUEUED_MAX. The names that tasks wait
    under are found one by one along the index.
    """
    waiting = select(func.min(task.c.queue).label("name")).where(task.c.state == "QUEUED").cte(recursive=True)
    following = select(func.min(task.c.queue)).where(task.c.state == "QUEUED", task.c.queue > waiting.c.name)
    waiting = waiting.union_all(select(following.scalar_subquery()).where(waiting.c.name.is_not(None)))
    known = union(select(queue.c.name), select(waiting.c.name).where(waiting.c.name.is_not(None))).subquery("known")
    serving = (
        select(func.count())
        .where(
            lease.c.state == "LIVE",
            lease.c.expires_at > func.clock_timestamp(),
            known.c.name == func.any(lease.c.queues),
        )
        .scalar_subquery()
    )
    queued = (
        select(literal(1))
        .where(task.c.queue == known.c.name, task.c.state == "QUEUED")
        .limit(QUEUED_MAX)
        .correlate(known)
        .subquery()
    )
    return (
        select(
            known.c.name,
            func.coalesce(queue.c.paused, false()).label("paused"),
            cast(extract("epoch", queue.c.retention), Float).label("retention_seconds"),
            serving.label("workers"),
            select(func.count()).select_from(queued).correlate(known).scalar_subquery().label("queued"),
        )
        .outerjoin_from(known, queue, queue.c.name == known.c.name)
        .order_by(known.c.name)
    )


def dead_letters(
    *,
    queue_name: str | None = None,
    name: str | None = None,
    code: str | None = None,
    after: UUID | None = None,
    limit: int = LIMIT,
) -> Select[Any]:
    """Select FAILED tasks that nobody has judged yet, the oldest first; `after` is the last id of the page before."""
    columns = (
        task.c.id, task.c.name, task.c.queue, task.c.attempt, task.c.failure_code, task.c.failure_reason, task.c.finished_at,
    )  # fmt: skip
    conditions = [*_dead(queue_name, name, code, ()), *([task.c.id > after] if after is not None else [])]
    return select(*columns).where(*conditions).order_by(task.c.id).limit(limit)


def dead_attempts(
    *,
    queue_name: str | None = None,
    name: str | None = None,
    code: str | None = None,
    ids: tuple[UUID, ...] = (),
    limit: int | None = LIMIT,
) -> Select[Any]:
    """Select only what judging the same tasks takes: their ids and the attempts that failed."""
    return select(task.c.id, task.c.attempt).where(*_dead(queue_name, name, code, ids)).order_by(task.c.id).limit(limit)


def _dead(
    queue_name: str | None, name: str | None, code: str | None, ids: tuple[UUID, ...]
) -> list[ColumnElement[bool]]:
    return [
        task.c.state == "FAILED",
        task.c.resolved_at.is_(None),
        *([task.c.queue == queue_name] if queue_name is not None else []),
        *([task.c.name == name] if name is not None else []),
        *([task.c.failure_code == code] if code is not None else []),
        *([task.c.id.in_(ids)] if ids else []),
    ]


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
