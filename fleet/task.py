"""A task's states, the outcomes of an attempt, and the fence that every settling write must match."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from fleet.lease import Lease

PRIORITY_DEFAULT = 5
PRIORITIES = range(10)
MAX_ATTEMPTS_IDEMPOTENT = 5
MAX_ATTEMPTS_OTHERWISE = 1
MAX_LOSSES = 3


class State(StrEnum):
    """Where a task is. A task that waits for a later moment, or for a retry, is QUEUED too."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


class FailureCode(StrEnum):
    """Why a task is FAILED. Unknown is never called failed: `LEASE_EXPIRED` says that nobody knows."""

    HANDLER_ERROR = "handler_error"
    LEASE_EXPIRED = "lease_expired"
    CRASH_BUDGET_EXHAUSTED = "crash_budget_exhausted"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    EXPIRED = "expired"
    RESULT_REJECTED = "result_rejected"


class ClaimedTask(NamedTuple):
    """One attempt of a task, held under a lease. `args` is JSON text, or None where it is fetched apart."""

    id: UUID
    name: str
    queue: str
    priority: int
    run_at: datetime
    attempt: int
    repeatable: bool
    failures: int
    losses: int
    timeout: timedelta | None
    args: str | None
    traceparent: str | None
    lease: Lease

    def __repr__(self) -> str:
        """Leave out the arguments, which no log may show."""
        return f"<attempt {self.attempt} of task {self.id} {self.name!r}>"


class Succeeded(NamedTuple):
    """The handler returned. `result` is JSON text."""

    result: str

    def __repr__(self) -> str:
        """Leave out the result, which no log may show."""
        return "Succeeded()"


@dataclass(frozen=True, slots=True)
class Errored:
    """The attempt ended badly: try again after `delay`, or, where that is None, never."""

    code: FailureCode
    reason: str = field(repr=False)  # may quote what the task was given
    delay: timedelta | None


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt is handed back at no cost: the task keeps its place in line."""

    reason: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler was stopped because somebody cancelled the task."""

    reason: str = field(repr=False)


Outcome = Succeeded | Errored | Released | Cancelled


def outcome_name(outcome: Outcome) -> str:
    """Return the word for it in the history of attempts."""
    match outcome:
        case Succeeded():
            return "succeeded"
        case Errored():
            return "error"
        case Released():
            return "released"
        case Cancelled():
            return "cancelled"


class Settlement(NamedTuple):
    """How one attempt ended: what the settler writes. `seconds` is how long its handler ran; None where none has ended."""

    task: ClaimedTask
    outcome: Outcome
    seconds: float | None = None


class Verdict(StrEnum):
    """What the database answered to one settlement."""

    SETTLED = "settled"
    ALREADY = "already"  # it had been written before: only the reply was lost
    BUSY = "busy"  # somebody else holds the row: try again
    FENCED = "fenced"  # the attempt is not ours any more: nothing was changed
