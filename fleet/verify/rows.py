"""The rows of the fleet's tables as a history tells them: only what a judge looks at. Ids are text, moments Unix seconds."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
OVER = frozenset({"REAPED", "RELEASED"})
OMITTED = object()  # arguments that were too large to be written down, or that an update did not change


class TaskRow(NamedTuple):
    id: str
    state: str
    queue: str
    name: str
    attempt: int
    failures: int
    losses: int
    max_attempts: int
    max_losses: int
    lease_id: str | None
    repeatable: bool
    cancel_requested: bool
    failure_code: str | None
    run_at: str
    resolved_at: str | None
    args: Any


class LeaseRow(NamedTuple):
    id: str
    worker: str
    host: str
    pid: int
    state: str
    renewed_at: float
    expires_at: float


class AttemptRow(NamedTuple):
    task_id: str
    attempt: int
    late: bool
    lease_id: str
    outcome: str
    detail: str | None


class CounterRow(NamedTuple):
    writer: str
    name: str
    queue: str
    reason: str
    value: int


class SubmissionRow(NamedTuple):
    scope: str
    key: str
    task_id: str


class AuditRow(NamedTuple):
    actor: str
    action: str
    subject: str
    detail: str | None


_KINDS: dict[str, type[Any]] = {
    "task": TaskRow,
    "lease": LeaseRow,
    "attempt": AttemptRow,
    "counter": CounterRow,
    "submission": SubmissionRow,
    "audit": AuditRow,
}


def read_row(table: str, values: Mapping[str, Any] | None) -> Any:
    """Return a row of this table; None for no row, and for tables that no judge looks at."""
    kind = _KINDS.get(table)
    if kind is None or values is None:
        return None
    if kind is LeaseRow:
        moments = {name: datetime.fromisoformat(values[name]).timestamp() for name in ("renewed_at", "expires_at")}
        values = {**values, **moments}
    elif kind is TaskRow and "args" not in values:
        values = {**values, "args": OMITTED}
    return kind._make(map(values.get, kind._fields))
