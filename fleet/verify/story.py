"""The whole story of one task: every line about it, in time order, fit to be read by a person."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fleet.verify.history import Line
from fleet.verify.reading import Change, History
from fleet.verify.rows import OMITTED, TaskRow

_HIDDEN = {"at", "by", "what", "task", "op"}
_FAULTS = ("fault", "cut")
_LINES_MAX = 400


class Moment(NamedTuple):
    """One line of a story; `n` puts what the database did in its own order."""

    at: float
    n: int
    by: str
    words: str


def tell(history: History, task: str) -> str:
    """Return everything that is known of a task, a line each, with seconds since the first."""
    moments = sorted([*_lines(history, task), *_changes(history, task), *_leases(history, task)])
    if not moments:
        return f"task {task}: nothing else is known of it"
    first, last = moments[0].at, moments[-1].at
    moments = sorted([*moments, *_faults(history, first, last)])
    width = max(len(each.by) for each in moments)
    shown = [f"{each.at - first:+10.6f} s  {each.by:<{width}}  {each.words}" for each in moments[:_LINES_MAX]]
    if len(moments) > _LINES_MAX:
        shown.append(f"and {len(moments) - _LINES_MAX} lines more")
    began = datetime.fromtimestamp(first, UTC).isoformat(timespec="milliseconds")
    return "\n".join([f"task {task}, from {began}:", *shown, *_end(history, task)])


def _lines(history: History, task: str) -> Iterator[Moment]:
    """What clients, workers and the sink wrote; the question, too, whose answer alone names the task."""
    ops = {line["op"] for line in history.lines if line.get("task") == task and "op" in line}
    for line in history.lines:
        if line.get("task") == task or line.get("op") in ops:
            yield _moment(line)


def _faults(history: History, first: float, last: float) -> Iterator[Moment]:
    for what in _FAULTS:
        for line in history.said[what]:
            if first <= line["at"] <= last:
                yield _moment(line)


def _moment(line: Line) -> Moment:
    facts = " ".join(f"{key}={_plain(value)}" for key, value in line.items() if key not in _HIDDEN)
    return Moment(line["at"], 0, line["by"], f"{line['what']} {facts}")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _changes(history: History, task: str) -> Iterator[Moment]:
    for change in history.by_task.get(task, []):
        yield Moment(change.at, change.n, "database", f"{_step(change)}  [transaction {change.txid}]")
    for each in history.changes["attempt"]:
        row = each.new or each.old
        if row is not None and row.task_id == task:
            kind = "late report" if row.late else "history"
            verb = "" if each.new else " deleted"
            words = f"{kind}{verb}: attempt {row.attempt} {row.outcome} under lease {row.lease_id}"
            yield Moment(each.at, each.n, "database", f"{words}  [transaction {each.txid}]")
    for each in history.changes["audit"]:
        if each.new and each.new.subject == task:
            yield Moment(each.at, each.n, "database", f"audit: {each.new.action} by {each.new.actor}")


def _step(change: Change[TaskRow]) -> str:
    old, new = change.old, change.new
    if old is None:
        return f"made {_facts(new)}" if new else "nothing"
    if new is None:
        return f"deleted while {_facts(old)}"
    changed = [
        f"{name}: {_plain(before)} → {_plain(after)}"
        for name, before, after in zip(TaskRow._fields[:-1], old[:-1], new[:-1], strict=True)
        if before != after
    ]
    return ", ".join(changed) or (
        "args changed" if new.args is not OMITTED else "written, with no change that is shown"
    )


def _facts(row: TaskRow) -> str:
    return f"{row.state} {row.name} in queue {row.queue}, attempt {row.attempt}"


def _leases(history: History, task: str) -> Iterator[Moment]:
    """The states of the leases that it was held under, and no renewals."""
    for lease in {each.new.lease_id for each in history.claims if each.new and each.new.id == task}:
        for change in history.by_lease.get(lease or "", []):
            before, after = change.old.state if change.old else "nothing", change.new.state if change.new else "gone"
            if before != after:
                yield Moment(change.at, change.n, "database", f"lease {lease}: {before} → {after}")


def _end(history: History, task: str) -> Iterator[str]:
    row = history.tasks.get(task)
    if row is not None:
        facts = f"{row.failures} failures, {row.losses} losses, code {row.failure_code or 'none'}"
        yield f"in the end: {_facts(row)}, {facts}"
    elif history.dumped:
        yield "in the end: there is no such row"
