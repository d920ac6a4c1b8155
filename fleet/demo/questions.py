"""What the demo asks the database: everything that it tells is read here, nothing is remembered by the demo itself."""

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Select, and_, column, distinct, exists, func, or_, select, table

from fleet.postgres.tables import attempt, counter, lease, task
from fleet.task import State

_SESSIONS = table("pg_stat_activity", column("application_name"))
_RUNNING = task.c.state == State.RUNNING.value


class Holder(NamedTuple):
    """A worker and its lease; `now` is the moment of the answer by the database's clock."""

    lease_id: UUID
    worker: str
    pid: int
    now: datetime


class Held(NamedTuple):
    """A task that the worker held when it died. `at`: when a reaper settled it; None as long as none has."""

    id: UUID
    name: str
    title: str
    state: State
    attempt: int
    failure_code: str | None
    at: datetime | None


class Counts(NamedTuple):
    """How many tasks there are in all, and in which states."""

    tasks: int
    terminal: int
    succeeded: int
    failed: int
    lease_expired: int


def workers(connection: Connection) -> list[Holder]:
    """Return the workers that hold a lease, by name."""
    return _holders(connection, _holder().where(lease.c.state == "LIVE").order_by(lease.c.worker))


def running_both(connection: Connection, fresh: timedelta, lease_id: UUID | None = None) -> list[Holder]:
    """Return the workers (or ask about one) that run tasks of both kinds, each started less than `fresh` ago."""
    of_one = [lease.c.id == lease_id] if lease_id else []
    question = (
        _holder()
        .join(task, task.c.lease_id == lease.c.id)
        .where(lease.c.state == "LIVE", _RUNNING, task.c.started_at > func.clock_timestamp() - fresh, *of_one)
        .group_by(lease.c.id)
        .having(func.count(distinct(task.c.name)) == 2)
    )
    return _holders(connection, question)


def held(connection: Connection, lease_id: UUID) -> list[Held]:
    """Return what a dead worker held: the tasks still RUNNING under its lease, and those that were taken from it."""
    lost = and_(attempt.c.task_id == task.c.id, attempt.c.lease_id == lease_id, attempt.c.outcome == "lost")
    columns = (task.c.id, task.c.name, task.c.args["title"].astext, task.c.state, task.c.attempt, task.c.failure_code)
    question = (
        select(*columns, attempt.c.at)
        .outerjoin(attempt, lost)
        .where(or_(attempt.c.at.is_not(None), and_(_RUNNING, task.c.lease_id == lease_id)))
        .order_by(task.c.name, task.c.id)
    )
    return [Held(*row[:3], State(row[3]), *row[4:]) for row in connection.execute(question)]


def accusers(connection: Connection) -> list[str]:
    """Return the names of the workers whose reapers have ended another worker's lease."""
    counted = exists().where(counter.c.writer == lease.c.id, counter.c.name == "lease_expirations")
    return list(connection.scalars(select(lease.c.worker).where(counted).order_by(lease.c.worker)))


def counts(connection: Connection) -> Counts:
    """Count the tasks by how they stand."""
    conditions = (
        task.c.state.in_([state.value for state in State if state.terminal]),
        task.c.state == State.SUCCEEDED.value,
        task.c.state == State.FAILED.value,
        task.c.failure_code == "lease_expired",
    )
    question = select(func.count(), *(func.count().filter(condition) for condition in conditions)).select_from(task)
    return Counts._make(connection.execute(question).one())


def succeeded(connection: Connection, name: str) -> set[UUID]:
    """Return the tasks of one name that succeeded."""
    return set(connection.scalars(select(task.c.id).where(task.c.name == name, task.c.state == State.SUCCEEDED.value)))


def sessions(connection: Connection, application_name: str) -> int:
    """Count the sessions that a process still has on the server."""
    question = select(func.count()).select_from(_SESSIONS).where(_SESSIONS.c.application_name == application_name)
    return connection.execute(question).scalar_one()


def is_empty(connection: Connection) -> bool:
    """Tell whether there is neither a task nor a worker."""
    some = or_(exists(select(task.c.id)), exists(select(lease.c.id).where(lease.c.cleared_at.is_(None))))
    return not connection.execute(select(some)).scalar_one()


def _holder() -> Select[tuple[UUID, str, int, datetime]]:
    return select(lease.c.id, lease.c.worker, lease.c.pid, func.clock_timestamp()).select_from(lease)


def _holders(connection: Connection, question: Select[tuple[UUID, str, int, datetime]]) -> list[Holder]:
    return [Holder._make(row) for row in connection.execute(question)]
