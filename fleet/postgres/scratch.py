"""What the tests of a user's own code ask for: databases of their own, what was submitted, what is due."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, LiteralString
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
from psycopg import sql
from sqlalchemy import Select, and_, func, literal, or_, select

from fleet.postgres.tables import attempt, lease, task

SUBMITTED_MAX = 1000


@contextmanager
def new_database(server_url: str, template: str, *how: LiteralString) -> Iterator[str]:
    """Lend the URL of a new copy of the database `template`; it is gone afterwards. `how`: more words of CREATE DATABASE.

    `server_url` names a database whose user may create others.
    """
    name = f"fleet_test_{uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {} {}")
        connection.execute(made.format(sql.Identifier(name), sql.Identifier(template), sql.SQL(" ".join(how))))
    try:
        yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def due(names: Collection[str], queues: Collection[str], within: timedelta) -> Select[Any]:
    """Select the number of tasks of these names that run, or that wait in these queues and are due within so long."""
    waits = and_(
        task.c.state == "QUEUED",
        task.c.queue.in_(queues),
        task.c.run_at <= func.clock_timestamp() + literal(within),
    )
    return select(func.count().label("due")).where(task.c.name.in_(names), or_(waits, task.c.state == "RUNNING"))


def submitted(name: str | None = None, *, limit: int = SUBMITTED_MAX) -> Select[Any]:
    """Select the tasks of a name, or of all, that were submitted, the newest first."""
    columns = (task.c.id, task.c.name, task.c.args, task.c.queue, task.c.state)
    return (
        select(*columns)
        .where(*([task.c.name == name] if name is not None else []))
        .order_by(task.c.id.desc())
        .limit(limit)
    )


def holder(task_id: UUID) -> Select[Any]:
    """Select how a task stands, and under which lease it runs, if it does."""
    return select(task.c.state, task.c.attempt, task.c.lease_id, task.c.failure_code, task.c.failure_reason).where(
        task.c.id == task_id
    )


def attempts(task_id: UUID) -> Select[Any]:
    """Select what is on record of the attempts of a task that did not simply succeed, and of late reports."""
    return (
        select(attempt.c.attempt, attempt.c.late, attempt.c.outcome, attempt.c.detail, lease.c.worker)
        .outerjoin(lease, lease.c.id == attempt.c.lease_id)
        .where(attempt.c.task_id == task_id)
        .order_by(attempt.c.attempt, attempt.c.late)
    )
