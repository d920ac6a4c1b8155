"""Put tasks into the queue: one, in whatever transaction; or very many by COPY."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from fleet.errors import IdempotencyConflict
from fleet.postgres.database import AsyncConnection, Row, Statement
from fleet.task import MAX_ATTEMPTS_OTHERWISE, MAX_LOSSES, PRIORITY_DEFAULT

SUBMIT = Statement("""
INSERT INTO fleet.task (id, queue, name, args, priority, idempotent, max_attempts, max_losses, timeout, run_at, expires_at,
  traceparent)
SELECT :id::uuid, :queue::text, :name::text, :args::jsonb, :priority::smallint, :idempotent::boolean, :max_attempts::int,
  :max_losses::int, :timeout::interval,
  coalesce(clock.now + :delay::interval, :run_at::timestamptz, clock.now), :expires_at::timestamptz, :traceparent::text
FROM (SELECT clock_timestamp() AS now) AS clock
RETURNING id, true AS created, true AS same_request
""")

# DO UPDATE with no effect, instead of DO NOTHING: that one waits for the other inserter and then cannot see its row.
SUBMIT_ONCE = Statement("""
WITH submitted AS (
  INSERT INTO fleet.submission AS first (scope, key, task_id, fingerprint)
  VALUES (:scope::text, :key::text, :id::uuid, :fingerprint::text)
  ON CONFLICT (scope, key) DO UPDATE SET key = EXCLUDED.key
  RETURNING first.task_id, first.fingerprint
), created AS (
  INSERT INTO fleet.task (id, queue, name, args, priority, idempotent, max_attempts, max_losses, timeout, run_at, expires_at,
    traceparent)
  SELECT :id::uuid, :queue::text, :name::text, :args::jsonb, :priority::smallint, :idempotent::boolean, :max_attempts::int,
    :max_losses::int, :timeout::interval,
    coalesce(clock.now + :delay::interval, :run_at::timestamptz, clock.now), :expires_at::timestamptz, :traceparent::text
  FROM submitted
  CROSS JOIN (SELECT clock_timestamp() AS now) AS clock
  WHERE submitted.task_id = :id::uuid
  RETURNING id
)
SELECT submitted.task_id, created.id IS NOT NULL AS created, submitted.fingerprint = :fingerprint::text AS same_request
FROM submitted
LEFT JOIN created ON true
""")

COPY = b"""
COPY fleet.task (id, queue, name, args, priority, idempotent, max_attempts, max_losses, timeout, run_at, expires_at,
  traceparent)
FROM STDIN
"""


_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
ROWS_ANSWERED = 100_000  # so many more rows, and the end of the COPY may take one patience longer
CHUNK = 500  # rows sent at once, so that the server writes some while others are made ready


class Submission(NamedTuple):
    """One task to be: everything that its row begins with. `args` is JSON text; `delay` goes before `run_at`."""

    id: UUID
    queue: str
    name: str
    args: str
    priority: int = PRIORITY_DEFAULT
    idempotent: bool | None = None
    max_attempts: int = MAX_ATTEMPTS_OTHERWISE
    max_losses: int = MAX_LOSSES
    timeout: timedelta | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    key: str | None = None
    scope: str = ""
    traceparent: str | None = None

    def __repr__(self) -> str:
        """Leave out the arguments, which no log may show."""
        return f"<submission of task {self.id} {self.name!r}>"

    @property
    def fingerprint(self) -> str:
        """What makes two requests the same: all that the submitter said, but no moments, which move between tries."""
        said = [
            self.queue,
            self.name,
            json.loads(self.args),
            self.priority,
            self.idempotent,
            self.max_attempts,
            self.max_losses,
        ]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def statement(submission: Submission) -> tuple[Statement, dict[str, Any]]:
    """Return what to run, in any transaction, to submit one task; `accepted` reads its answer."""
    values: dict[str, Any] = {
        "id": str(submission.id),
        "queue": submission.queue,
        "name": submission.name,
        "args": submission.args,
        "priority": submission.priority,
        "idempotent": submission.idempotent,
        "max_attempts": submission.max_attempts,
        "max_losses": submission.max_losses,
        "timeout": _interval(submission.timeout),
        "delay": _interval(submission.delay),
        "run_at": submission.run_at.isoformat() if submission.run_at else None,
        "expires_at": submission.expires_at.isoformat() if submission.expires_at else None,
        "traceparent": submission.traceparent,
    }
    if submission.key is None:
        return SUBMIT, values
    once = {"scope": submission.scope, "key": submission.key, "fingerprint": submission.fingerprint}
    return SUBMIT_ONCE, values | once


def accepted(submission: Submission, row: Row) -> tuple[UUID, bool]:
    """Return the task's id and whether this submission made it. Raises IdempotencyConflict for another request."""
    task_id, created, same_request = row
    if not same_request:
        raise IdempotencyConflict(submission.key or "", UUID(str(task_id)))
    return UUID(str(task_id)), created


async def copy(
    connection: AsyncConnection, like: Submission, rows: Iterable[tuple[UUID, str]], progress: Callable[[int], None]
) -> None:
    """Write many tasks by one COPY, in the order given: all or nothing. Each row is an id and arguments as JSON text.

    All else is as `like` says it; its idempotency key is not looked at. `progress` is called now and then with the number
    of rows sent so far. It may take as long as it takes: the statement time-out is meant for single tasks.
    """
    with connection.patience() as patience:
        async with connection.transaction(), connection.cursor() as cursor:
            await cursor.execute("SELECT clock_timestamp(), set_config('statement_timeout', '0', true)")
            row = await cursor.fetchone()
            now: datetime = row[0] if row else datetime.now(UTC)
            before, after = _around_args(like, now)
            count = 0
            async with cursor.copy(COPY) as stream:
                for chunk in _chunks(rows):
                    patience.begin()
                    # COPY's text format, written by hand: the driver takes three times as long for it.
                    await stream.write("".join([f"{id_.int:032x}{before}{_text(args)}{after}" for id_, args in chunk]))
                    count += len(chunk)
                    progress(count)
                    patience.begin(1 + count / ROWS_ANSWERED)


def _chunks(rows: Iterable[tuple[UUID, str]]) -> Iterator[list[tuple[UUID, str]]]:
    each = iter(rows)
    while chunk := list(islice(each, CHUNK)):
        yield chunk


def _around_args(like: Submission, now: datetime) -> tuple[str, str]:
    """Return what stands before and after the arguments in each row."""
    due_at = now + like.delay if like.delay is not None else like.run_at or now
    return (
        f"\t{_text(like.queue)}\t{_text(like.name)}\t",
        (
            f"\t{like.priority}\t{_or_null(like.idempotent)}\t{like.max_attempts}\t{like.max_losses}"
            f"\t{_or_null(_interval(like.timeout))}\t{due_at}\t{_or_null(like.expires_at)}\t{_or_null(like.traceparent)}\n"
        ),
    )


def _text(value: str) -> str:
    """Escape what has a meaning in COPY's text format."""
    value = value.replace("\\", "\\\\")
    return value if value.isprintable() else value.translate(_ESCAPES)


def _or_null(value: object) -> object:
    return "\\N" if value is None else value


def _interval(value: timedelta | None) -> str | None:
    return None if value is None else f"{value.total_seconds()} seconds"
