"""Events as log lines, logger `fleet`: wording, level and fields in one place. structlog gives all lines their form.

What tasks were given and what they returned is never logged, nor the text of a handler's exception, which may quote it.
"""

import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.processors import JSONRenderer, LogfmtRenderer, StackInfoRenderer, format_exc_info
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from fleet import events as happened
from fleet.context import current_task
from fleet.events import Event, Events
from fleet.payload import clean_text
from fleet.redaction import redacted
from fleet.task import Cancelled, ClaimedTask, Errored, FailureCode, Released, Settlement, State, Succeeded

_LOGGER = logging.getLogger("fleet")
_TEXT_BYTES = 64 * 1024
_TYPE = re.compile(r"[A-Za-z_][\w.]*(?=:|\s|$)")
_LOGFMT = LogfmtRenderer()


@dataclass(frozen=True, slots=True)
class Line:
    """What a record of ours says; as text for programs that print it by logging of their own."""

    message: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return clean_text(f"{self.message} {_LOGFMT(None, '', dict(self.fields))}".rstrip(), _TEXT_BYTES)


def configure(form: str | None, level: str) -> None:
    """Send every logger's records to stderr as `form`: console or json; also warnings, and what structlog's loggers say.

    None means console, unless the program has set up logging of its own: that is left as it is, and only learns
    `task_id` and `attempt`.
    """
    root = logging.getLogger()
    _LOGGER.setLevel(level.upper())
    if form is None and root.handlers:
        for handler in root.handlers:
            handler.addFilter(_tell_task)
        return
    ours = logging.StreamHandler(sys.stderr)
    ours.setFormatter(_formatter(form, colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR")))
    root.handlers[:] = [ours]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every look at the schema
    if form is not None or not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.PositionalArgumentsFormatter(),
                ProcessorFormatter.wrap_for_formatter,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


def subscribe(events: Events) -> None:
    """Log everything that happens there."""
    events.subscribe(log)


def log(event: Event) -> None:
    """Write the line of one event. What comes with every task costs next to nothing where nobody debugs."""
    if _is_routine(event) and not _LOGGER.isEnabledFor(logging.DEBUG):
        return
    level, message, fields = describe(event)
    if _LOGGER.isEnabledFor(level):
        error = fields.pop("exc_info", None)
        _LOGGER.log(level, Line(message, fields), exc_info=error)


def _is_routine(event: Event) -> bool:
    match event:
        case happened.TaskSettled(settlement, _):
            return isinstance(settlement.outcome, Succeeded)
        case happened.RequestAnswered():
            return event.status < 500
        case happened.TaskStarted() | happened.TasksClaimed() | happened.SettlementsWritten() | happened.LeaseRenewed():
            return True
    return False


def describe(event: Event) -> tuple[int, str, dict[str, Any]]:  # noqa: C901, PLR0911, PLR0912 - one case an event
    """Return the level, the words and the fields of an event."""
    match event:
        case happened.TaskStarted(task):
            return logging.DEBUG, "task started", _of_task(task)
        case happened.TaskSettled(settlement, state):
            return _settled(settlement, state)
        case happened.SettlementsWritten(count, seconds):
            return logging.DEBUG, "ends written", {"count": count, "seconds": round(seconds, 4)}
        case happened.TasksClaimed(count=count, seconds=seconds):
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
        case happened.ChildStarted(name, pid):
            return logging.INFO, "process started", {"name": name, "pid": pid}
        case happened.ChildEnded(name, pid, code):
            level = logging.WARNING if code else logging.INFO
            return level, "process ended", {"name": name, "pid": pid, "code": code}
        case happened.ServerRestarted(pid):
            return logging.WARNING, "embedded server had ended: it runs again", {"pid": pid}
        case happened.ApiListening(address):
            return logging.INFO, "api listening", {"address": address}
        case happened.MetricsListening(address):
            return logging.INFO, "metrics listening", {"address": address}
        case happened.RequestAnswered(method, route, status, seconds):
            level = logging.WARNING if status >= 500 else logging.DEBUG
            fields = {"method": method, "route": route, "status": status, "seconds": round(seconds, 4)}
            return level, "request answered", fields
        case happened.RequestBroken(method, route, error):
            fields = {"method": method, "route": route, "exc_info": error}
            return logging.ERROR, "request broken by a defect of fleet", fields
        case happened.DatabaseTrouble(operation, error, _):
            return logging.WARNING, "database trouble", {"operation": operation, "error": error}
    assert_never(event)


def _settled(settlement: Settlement, state: State) -> tuple[int, str, dict[str, Any]]:
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


def _of_task(task: ClaimedTask) -> dict[str, Any]:
    return {"task_id": task.id, "attempt": task.attempt, "name": task.name, "queue": task.queue}


def _formatter(form: str | None, *, colors: bool) -> ProcessorFormatter:
    if form == "json":
        last: list[Processor] = [_in_order, JSONRenderer()]
    else:
        renderer = ConsoleRenderer(
            colors=colors,
            exception_formatter=plain_traceback,
            sort_keys=False,
            event_key="message",
            timestamp_key="time",
        )
        last = [_escaped, renderer, _indented]
    return ProcessorFormatter(
        processors=[_entry, StackInfoRenderer(["logging"]), format_exc_info, _without_secrets, *last]
    )


def _entry(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Bring every record into one shape, and add the task that a handler's own line belongs to."""
    record: logging.LogRecord = event["_record"]
    event = ProcessorFormatter.remove_processors_meta(logger, method, event)
    message = event.pop("event")
    if isinstance(record.msg, Line):
        message = record.msg.message
        event.update(record.msg.fields)
    if task := current_task.get():
        event.setdefault("task_id", task.id)
        event.setdefault("attempt", task.attempt)
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    # Last, so that no field of anybody's can pass for one of these.
    event.update(time=moment, level=record.levelname.lower(), logger=record.name, message=message)
    return event


def _without_secrets(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    return {name: _plain(value) for name, value in event.items()}


def _plain(value: Any) -> Any:
    """Return what JSON knows, with the secrets in its texts hidden."""
    match value:
        case str():
            return redacted(value)
        case None | bool() | int() | float():
            return value
        case dict():
            return {str(name): _plain(member) for name, member in value.items()}
        case list() | tuple():
            return [_plain(member) for member in value]
    return _plain(str(value))


def _in_order(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event.setdefault("pid", os.getpid())  # a line about another process has that one's
    return {name: event[name] for name in ("time", "level", "logger", "pid", "message")} | dict(event)


def _escaped(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escape control characters before colours are added: a text from anywhere must not drive the terminal."""
    return {
        clean_text(name, _TEXT_BYTES): clean_text(value, _TEXT_BYTES) if isinstance(value, str) else value
        for name, value in event.items()
    }


def _indented(logger: WrappedLogger, method: str, text: Any) -> Any:
    """Indent all lines but the first, so that none can be forged."""
    return text.replace("\n", "\n    ")


def _tell_task(record: logging.LogRecord) -> bool:
    """Let a program's own formatters know the task that a record belongs to."""
    task = current_task.get()
    record.task_id = None if task is None else str(task.id)
    record.attempt = None if task is None else task.attempt
    return True
