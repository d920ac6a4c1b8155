"""Events as lines of the standard library's logging, logger `fleet`: wording, level and fields in one place.

What tasks were given and what they returned is never logged, nor the text of a handler's exception, which may quote it.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, assert_never

from fleet import events as happened
from fleet.context import current_task
from fleet.events import Event, Events
from fleet.payload import clean_text
from fleet.task import Cancelled, ClaimedTask, Errored, FailureCode, Released, Settlement, State, Succeeded

_LOGGER = logging.getLogger("fleet")
_LINE_BYTES = 64 * 1024
_TYPE = re.compile(r"[A-Za-z_][\w.]*(?=:|\s|$)")


@dataclass(frozen=True, slots=True)
class Line:
    """What a record of ours says; whatever formatter prints it, the fields are there."""

    message: str
    fields: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.message, *(f"{name}={_quoted(value)}" for name, value in self.fields.items())])


class TaskFilter(logging.Filter):
    """Gives every record that a handler causes, from whatever logger, the `task_id` and `attempt` that it ran for."""

    def filter(self, record: logging.LogRecord) -> bool:
        task = current_task.get()
        record.task_id = None if task is None else str(task.id)
        record.attempt = None if task is None else task.attempt
        return True


class ConsoleFormatter(logging.Formatter):
    """`time LEVEL message key=value`, for people; further lines are indented, so that none can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_moment(record), f"{record.levelname:<7}", _message(record)]
        words += [f"{name}={value}" for name, value in _context(record).items()]
        text = " ".join(words)
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return clean_text(text, _LINE_BYTES).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        line = record.msg if isinstance(record.msg, Line) else Line(record.getMessage())
        entry: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": line.message,
            **line.fields,
            **_context(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(form: str | None, level: str) -> None:
    """Send every logger's records to stderr as `form`: console or json.

    None means console, unless the program has set up logging of its own: that is left as it is, and only learns
    `task_id` and `attempt`.
    """
    root = logging.getLogger()
    _LOGGER.setLevel(level.upper())
    if form is not None or not root.handlers:
        ours = logging.StreamHandler(sys.stderr)
        ours.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
        root.handlers[:] = [ours]
        root.setLevel(level.upper())
    for handler in root.handlers:
        handler.addFilter(TaskFilter())


def subscribe(events: Events) -> None:
    """Log everything that happens there."""
    events.subscribe(log)


def log(event: Event) -> None:
    """Write the line of one event. What comes with every task costs next to nothing where nobody debugs."""
    if _is_routine(event) and not _LOGGER.isEnabledFor(logging.DEBUG):
        return
    level, message, fields = describe(event)
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, Line(message, fields))


def _is_routine(event: Event) -> bool:
    match event:
        case happened.TaskSettled(settlement, _):
            return isinstance(settlement.outcome, Succeeded)
        case happened.TaskStarted() | happened.TasksClaimed() | happened.LeaseRenewed():
            return True
    return False


def describe(event: Event) -> tuple[int, str, dict[str, object]]:  # noqa: C901, PLR0911, PLR0912 - one case an event
    """Return the level, the words and the fields of an event."""
    match event:
        case happened.TaskStarted(task):
            return logging.DEBUG, "task started", _of_task(task)
        case happened.TaskSettled(settlement, state):
            return _settled(settlement, state)
        case happened.TasksClaimed(count, seconds):
            return logging.DEBUG, "tasks claimed", {"count": count, "seconds": round(seconds, 4)}
        case happened.LeaseRenewed(lease, seconds):
            return logging.DEBUG, "lease renewed", {"lease": lease.id, "seconds": round(seconds, 4)}
        case happened.LeaseGranted(lease):
            ttl = lease.ttl.total_seconds()
            return logging.INFO, "lease granted", {"lease": lease.id, "worker": lease.worker, "ttl_seconds": ttl}
        case happened.LeaseInDoubt(lease):
            return logging.WARNING, "lease in doubt: nothing starts until it is renewed", {"lease": lease.id}
        case happened.LeaseLost(lease):
            return logging.ERROR, "lease lost: its tasks belong to others now", {"lease": lease.id}
        case happened.TaskFenced(settlement):
            fields = _of_task(settlement.task) | {"outcome": type(settlement.outcome).__name__.lower()}
            return logging.WARNING, "report refused: somebody else had ended the attempt", fields
        case happened.TaskStuck(task):
            return logging.ERROR, "task is past its time limit and cannot be stopped", _of_task(task)
        case happened.TasksReconciled(count):
            return logging.WARNING, "tasks of a claim without an answer handed back", {"count": count}
        case happened.LeasesReaped(lease_ids):
            return logging.WARNING, "leases of vanished workers ended", {"leases": [str(each) for each in lease_ids]}
        case happened.TasksReclaimed(requeued, failed, cancelled):
            fields = {"requeued": requeued, "failed": failed, "cancelled": cancelled}
            return logging.WARNING, "tasks of vanished workers settled", fields
        case happened.TasksExpired(count):
            return logging.WARNING, "tasks failed: nobody started them in time", {"count": count}
        case happened.DrainStarted(why):
            return logging.INFO, "draining", {"why": why}
        case happened.ChildStarted(number, pid):
            return logging.INFO, "worker process started", {"number": number, "pid": pid}
        case happened.ChildEnded(number, pid, code):
            level = logging.WARNING if code else logging.INFO
            return level, "worker process ended", {"number": number, "pid": pid, "code": code}
        case happened.DatabaseTrouble(operation, error):
            return logging.WARNING, "database trouble", {"operation": operation, "error": error}
    assert_never(event)


def _settled(settlement: Settlement, state: State) -> tuple[int, str, dict[str, object]]:
    fields = _of_task(settlement.task)
    match settlement.outcome:
        case Succeeded():
            return logging.DEBUG, "task succeeded", fields
        case Released():
            return logging.DEBUG, "task handed back", fields
        case Cancelled():
            return logging.INFO, "task cancelled", fields
        case Errored(code, reason, delay):
            fields["code"] = code.value
            if code is FailureCode.HANDLER_ERROR and (kind := _TYPE.match(reason)):
                fields["error"] = kind[0]
            if state is State.QUEUED and delay is not None:
                fields["retry_in_seconds"] = round(delay.total_seconds(), 3)
                return logging.WARNING, "attempt failed: it is tried again", fields
            return logging.WARNING, f"task {state.value.lower()}", fields


def _of_task(task: ClaimedTask) -> dict[str, object]:
    return {"task_id": task.id, "attempt": task.attempt, "name": task.name, "queue": task.queue}


def _context(record: logging.LogRecord) -> dict[str, Any]:
    """Return the task that a handler's own line belongs to; our own lines say it themselves."""
    task_id = getattr(record, "task_id", None)
    if task_id is None or isinstance(record.msg, Line):
        return {}
    return {"task_id": task_id, "attempt": getattr(record, "attempt", None)}


def _message(record: logging.LogRecord) -> str:
    return record.getMessage() if isinstance(record.msg, Line) else f"{record.name}: {record.getMessage()}"


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and text and not any(c in text for c in ' ="')
    return text if plain else json.dumps(text, ensure_ascii=False)
