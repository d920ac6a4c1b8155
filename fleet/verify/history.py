"""A run written down while it happens: one line of JSON for each fact, appended so that not even SIGKILL loses one.

A run is a folder of `*.jsonl` files. Each line has `at` (Unix seconds), `by` (such as `worker 4711`) and `what`.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from fleet import events as happened
from fleet.events import Event, Events
from fleet.lease import Lease
from fleet.task import ClaimedTask, Settlement, outcome_name

VARIABLE = "FLEET_HISTORY"
ARGS_MAX = 2048  # characters of arguments that are written down; longer ones are left out
Line = dict[str, Any]


class Recorder:
    """Appends the facts of one process to a file of its own. Safe in several threads, and after a fork."""

    def __init__(self, folder: Path | str, by: str) -> None:
        self.by = by
        self.path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9]+', '-', by)}-{uuid4().hex[:8]}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, what: str, **facts: Any) -> None:
        """Append one line, by one write of the operating system. What is no JSON is written as its text."""
        line = {"at": time.time(), "by": self.by, "what": what} | facts
        os.write(self._descriptor, json.dumps(line, default=str).encode() + b"\n")

    def close(self) -> None:
        """Write no more."""
        os.close(self._descriptor)


def record_events(
    events: Events, folder: Path | str, by: str | None = None, *, handlers: Iterable[str] = ()
) -> Recorder:
    """Write down what happens in this worker, or supervisor, from now on; `handlers`: the names that it can run."""
    recorder = Recorder(folder, by or f"worker {os.getpid()}")
    names = sorted(handlers)

    def subscriber(event: Event) -> None:
        if type(event) not in _LINES:
            return
        what, facts_of = _LINES[type(event)]
        known = {"handlers": names} if what == "lease_granted" and names else {}
        recorder.write(what, **facts_of(event), **known)

    events.subscribe(subscriber)
    return recorder


def record_where_asked(
    events: Events, environ: Mapping[str, str], by: str | None = None, *, handlers: Iterable[str] = ()
) -> None:
    """Do so where the environment names a folder: FLEET_HISTORY."""
    folder = environ.get(VARIABLE)
    if folder:
        record_events(events, folder, by, handlers=handlers)


def lines(folder: Path | str) -> Iterator[Line]:
    """Read every file of a run, each in its own order. A last line that a killed process cut short is passed over."""
    for path in sorted(Path(folder).glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, 1):
                line = _read(text)
                if line is not None:
                    yield line
                elif text.endswith("\n"):
                    raise ValueError(f"line {number} of {path} is no line of a history: {text[:80]!r}")


def _read(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    return line if isinstance(line, dict) and {"at", "by", "what"} <= line.keys() else None


def _attempt(task: ClaimedTask) -> dict[str, Any]:
    return {"task": task.id, "attempt": task.attempt, "lease": task.lease.id}


def _start(task: ClaimedTask) -> dict[str, Any]:
    facts = _attempt(task) | {"name": task.name, "repeatable": task.repeatable}
    if task.args is not None and len(task.args) <= ARGS_MAX:
        facts["args"] = json.loads(task.args)
    return facts


def _end(settlement: Settlement) -> dict[str, Any]:
    return _attempt(settlement.task) | {"outcome": outcome_name(settlement.outcome)}


def _lease(lease: Lease) -> dict[str, Any]:
    return {"lease": lease.id, "ttl": lease.ttl.total_seconds(), "name": lease.worker}


# Kind of event → what its line is called, and the facts in it.
_LINES: dict[type, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    happened.TaskStarted: ("started", lambda event: _start(event.task)),
    happened.TaskSettled: ("settled", lambda event: _end(event.settlement) | {"state": event.state.value}),
    happened.TaskFenced: ("fenced", lambda event: _end(event.settlement)),
    happened.TaskStuck: ("stuck", lambda event: _attempt(event.task)),
    happened.TasksClaimed: ("claimed", lambda event: {"count": event.count, "seconds": event.seconds}),
    happened.LeaseGranted: ("lease_granted", lambda event: _lease(event.lease)),
    happened.LeaseRenewed: ("renewed", lambda event: {"lease": event.lease.id, "seconds": event.seconds}),
    happened.LeaseInDoubt: ("lease_in_doubt", lambda event: {"lease": event.lease.id}),
    happened.LeaseLost: ("lease_lost", lambda event: {"lease": event.lease.id}),
    happened.LeasesReaped: ("reaped", lambda event: {"leases": [str(each) for each in event.lease_ids]}),
    happened.TasksReclaimed: ("reclaimed", asdict),
    happened.TasksReconciled: ("reconciled", asdict),
    happened.TasksExpired: ("expired", asdict),
    happened.DrainStarted: ("drain", asdict),
    happened.ChildStarted: ("child_started", asdict),
    happened.ChildEnded: ("child_ended", asdict),
    happened.ServerRestarted: ("server_restarted", asdict),
    happened.DatabaseTrouble: ("trouble", asdict),
}
