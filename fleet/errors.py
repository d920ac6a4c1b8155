"""Every exception that a user can meet.

FleetError
├── ConfigurationError        a setting or a declaration that cannot hold; names the violated rule
├── InvalidArguments          a submission that was refused before anything was written
│   └── PayloadTooLarge       … because its JSON is over the limit
├── InvalidResult             a handler's return value that cannot be stored
├── IdempotencyConflict       the same key was used for another request
├── NotFound                  no such task, worker or queue
├── TaskFailed                ref.result(): the task ended FAILED
├── TaskCancelled             ref.result(): the task ended CANCELLED
├── DatabaseUnreachable       no connection could be made
│   ├── DatabaseBusy          … or none that got its turn: a lock or a time-out of the server, and nothing was written
│   ├── DatabaseFull          … or of no use: the server's disk or memory is full, and nothing was written
│   └── OutcomeUnknown        … any more: the statement may have taken effect or not
├── SchemaMismatch            the database's schema is older or newer than this code
└── UpgradeRefused            a worker runs whose code would not work with the new schema

`Retry` and `Fail` are no errors of Fleet: a handler raises them to say what follows (see retry.py).
"""

from uuid import UUID


def first_line(error: BaseException | None) -> str:
    """Return the first line of what any error says: a driver's goes on with its statement, or with hints."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class FleetError(Exception):
    """The base of everything that Fleet raises."""


class ConfigurationError(FleetError, ValueError):
    """A setting or a declaration that cannot hold."""


class InvalidArguments(FleetError, ValueError):
    """A submission that was refused before anything was written."""


class PayloadTooLarge(InvalidArguments):
    """JSON over its limit, both given in bytes of UTF-8."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{what} take {size_bytes:,} bytes as JSON; the limit is {limit_bytes:,}. "
            "Store large data elsewhere and submit a reference to it."
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class InvalidResult(FleetError, ValueError):
    """A handler's return value that cannot be stored."""


class IdempotencyConflict(FleetError):
    """The same key was used for another request; `task_id` is the task that the first one made."""

    def __init__(self, key: str, task_id: UUID) -> None:
        super().__init__(
            f"idempotency key {key!r} belongs to task {task_id}, which was submitted with other arguments or options. "
            "Use a new key for a new request."
        )
        self.key = key
        self.task_id = task_id


class NotFound(FleetError, LookupError):
    """No such task, worker or queue."""


class TaskFailed(FleetError):
    """The task ended FAILED: `code` is one of FailureCode, `reason` a sentence."""

    def __init__(self, task_id: UUID, code: str, reason: str) -> None:
        super().__init__(f"task {task_id} failed ({code}): {reason}")
        self.task_id = task_id
        self.code = code
        self.reason = reason


class TaskCancelled(FleetError):
    """The task ended CANCELLED."""

    def __init__(self, task_id: UUID) -> None:
        super().__init__(f"task {task_id} was cancelled")
        self.task_id = task_id


class DatabaseUnreachable(FleetError):
    """No connection could be made; the message names the address, never the password."""


class DatabaseBusy(DatabaseUnreachable):
    """The server ended the statement: it waited for a lock, or ran, for too long. Nothing was written; try again."""


class DatabaseFull(DatabaseUnreachable):
    """The server's disk or memory is full: nothing was written. The same call succeeds when there is space again."""


class OutcomeUnknown(DatabaseUnreachable):
    """The connection was lost before the answer came: nobody knows whether the statement took effect."""


class SchemaMismatch(FleetError):
    """The database's schema does not fit this code; the message says which side is older."""


class UpgradeRefused(FleetError):
    """Workers run whose code does not work with the new schema; the message names them. Nothing was changed."""
