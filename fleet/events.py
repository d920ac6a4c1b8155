"""What happens inside a worker, as values. Logs and metrics subscribe; the core only emits."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from fleet.lease import Lease
from fleet.task import ClaimedTask, Settlement, State


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    lease: Lease


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    lease: Lease
    seconds: float


@dataclass(frozen=True, slots=True)
class LeaseInDoubt:
    """The local deadline has passed: nothing starts until a renewal succeeds."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease is over; its tasks belong to others, and what still runs is only evidence."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class TasksClaimed:
    """One claim brought `tasks`; `seen` is its moment by the database's clock."""

    count: int
    seconds: float
    tasks: Sequence[ClaimedTask] = ()
    seen: datetime | None = None


class TaskStarted(NamedTuple):
    task: ClaimedTask


@dataclass(frozen=True, slots=True)
class SettlementsWritten:
    """One statement wrote the ends of so many attempts."""

    count: int
    seconds: float


class TaskSettled(NamedTuple):
    """The database took it; `state` is where the task is now."""

    settlement: Settlement
    state: State


@dataclass(frozen=True, slots=True)
class TaskFenced:
    """The database refused it: the attempt had been ended by somebody else. The report is kept as late."""

    settlement: Settlement


@dataclass(frozen=True, slots=True)
class TaskStuck:
    """A handler is past its limit and cannot be stopped; the process drains and exits."""

    task: ClaimedTask


@dataclass(frozen=True, slots=True)
class TasksReconciled:
    """Tasks claimed by a statement whose answer was lost, handed back."""

    count: int


@dataclass(frozen=True, slots=True)
class LeasesReaped:
    lease_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class TasksReclaimed:
    """Tasks of ended leases: so many back to QUEUED, so many FAILED, so many CANCELLED."""

    requeued: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class TasksExpired:
    count: int


@dataclass(frozen=True, slots=True)
class DrainStarted:
    why: str


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """A process of this supervisor runs: `name` is what it is, such as `worker 2`."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A process of this supervisor is gone; a negative code is the signal that killed it."""

    name: str
    pid: int
    code: int


@dataclass(frozen=True, slots=True)
class ServerRestarted:
    """The embedded PostgreSQL had ended by itself, and runs again."""

    pid: int


@dataclass(frozen=True, slots=True)
class ApiListening:
    address: str


@dataclass(frozen=True, slots=True)
class MetricsListening:
    address: str


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """`route` is the pattern, such as `/tasks/{id}`, and never what a client sent."""

    method: str
    route: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RequestBroken:
    """A request met a defect of ours; the client was told no more than that."""

    method: str
    route: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class DatabaseTrouble:
    """A statement could not be run; it is tried again. `sqlstate` is the server's code, None where it said none."""

    operation: str
    error: str
    sqlstate: str | None = None


Event = (
    LeaseGranted
    | LeaseRenewed
    | LeaseInDoubt
    | LeaseLost
    | TasksClaimed
    | TaskStarted
    | SettlementsWritten
    | TaskSettled
    | TaskFenced
    | TaskStuck
    | TasksReconciled
    | LeasesReaped
    | TasksReclaimed
    | TasksExpired
    | DrainStarted
    | ChildStarted
    | ChildEnded
    | ServerRestarted
    | ApiListening
    | MetricsListening
    | RequestAnswered
    | RequestBroken
    | DatabaseTrouble
)


class Events:
    """Hands each event to every subscriber, in the thread where it happened."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Event], None]] = []

    def subscribe(self, subscriber: Callable[[Event], None]) -> None:
        self._subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Never raises: a subscriber's error is reported on stderr and harms nobody else."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # noqa: BLE001 - whatever a subscriber does wrong, the worker goes on
                sys.excepthook(*sys.exc_info())
