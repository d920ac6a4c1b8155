"""S19: what the handler sees equals what was accepted."""

from collections.abc import Iterator
from typing import Any

from fleet.verify.reading import History
from fleet.verify.rows import OMITTED
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Compare the arguments that a client gave, the row that was made, and what each attempt was started with."""
    given: dict[str | None, Any] = {
        each.task: each.asked["args"]
        for each in history.operations("submit")
        if each.phase == "ok" and each.task and each.asked.get("args") is not None
    }
    starts = [line for line in history.said["started"] if "args" in line]
    findings = [*_stored(history, given), *_changed(history)]
    stored = {each.new.id: each.new.args for each in history.task_changes if each.old is None and each.new}
    for line in starts:
        accepted = given.get(line["task"], stored.get(line["task"], OMITTED))
        if accepted is not OMITTED and accepted != line["args"]:
            words = f"attempt {line['attempt']} was started with {line['args']!r} instead of {accepted!r}"
            findings.append(Finding(line["task"], words))
    return Ruling(findings, len(starts), "starts with arguments that are known")


def _stored(history: History, given: dict[str | None, Any]) -> Iterator[Finding]:
    told: set[str | None] = set()
    for change in history.task_changes:
        row = change.new
        if change.old is None and row is not None and row.args is not OMITTED:
            told.add(row.id)
            if row.id in given and given[row.id] != row.args:
                yield Finding(row.id, f"was accepted with {given[row.id]!r}, and stored with {row.args!r}")
    for task, row in history.tasks.items():
        if task in given and task not in told and row.args is not OMITTED and given[task] != row.args:
            yield Finding(task, f"was accepted with {given[task]!r}, and is stored with {row.args!r}")


def _changed(history: History) -> Iterator[Finding]:
    """The journal tells the arguments of an update only where it changed them."""
    for change in history.task_changes:
        if change.old is not None and change.new is not None and change.new.args is not OMITTED:
            yield Finding(change.new.id, f"its arguments were changed while it was {change.old.state}")
