"""S4: the report of a worker whose attempt was ended by somebody else changes nothing, is counted, and is kept."""

from collections.abc import Iterator

from fleet.verify.history import Line
from fleet.verify.reading import Attempt, Ending, History
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Compare what workers heard of their reports with how those attempts really ended."""
    ends = {(each.old.id, each.old.attempt): each for each in history.endings}
    settled = [finding for line in history.said["settled"] for finding in _taken(history, ends, line)]
    own = {(line["task"], line["attempt"], line["lease"]) for line in history.said["settled"]}
    fenced = [finding for line in history.said["fenced"] for finding in _refused(history, own, line)]
    tested = max(len(history.said["fenced"]), len(history.late))
    return Ruling([*settled, *fenced, *_changed_something(history)], tested, "reports that came too late")


def _taken(history: History, ends: dict[Attempt, Ending], line: Line) -> Iterator[Finding]:
    """A report that was taken must be what ended that very attempt, under that very lease."""
    attempt: Attempt = (line["task"], line["attempt"])
    row, end = history.ended.get(attempt), ends.get(attempt)
    who = f"the report of {line['by']} on attempt {line['attempt']} was taken"
    if row is not None and row.outcome != line.get("outcome", row.outcome):
        yield Finding(line["task"], f"{who} as {line['outcome']}, but the attempt had ended as {row.outcome}")
    elif row is not None and row.lease_id != line["lease"]:
        yield Finding(line["task"], f"{who} under lease {line['lease']}, but it was held under {row.lease_id}")
    elif end is not None and end.old.lease_id != line["lease"]:
        yield Finding(line["task"], f"{who} under lease {line['lease']}, but it was held under {end.old.lease_id}")
    elif end is None and line["task"] in history.whole:
        yield Finding(line["task"], f"{who}, but the task never left RUNNING in that attempt")


def _refused(history: History, own: set[tuple[str, int, str]], line: Line) -> Iterator[Finding]:
    """A report that was refused is kept, and somebody else ended the attempt."""
    attempt: Attempt = (line["task"], line["attempt"])
    if history.dumped and attempt not in history.late and line["task"] in history.tasks:
        yield Finding(line["task"], f"the late report of {line['by']} on attempt {line['attempt']} was not kept")
    lost = history.ended.get(attempt)
    if (
        lost is None
        and line["task"] in history.whole
        and line["task"] in history.tasks
        and (line["task"], line["attempt"], line["lease"]) not in own
    ):
        words = f"the report of {line['by']} on attempt {line['attempt']} was refused, though nobody had taken it away"
        yield Finding(line["task"], words)


def _changed_something(history: History) -> Iterator[Finding]:
    """The transaction that keeps a late report touches no task."""
    touched = {(each.txid, each.old.id) for each in history.endings}
    for change in history.changes["attempt"]:
        row = change.new
        if row is not None and change.old is None and row.late and (change.txid, row.task_id) in touched:
            yield Finding(row.task_id, f"a late report on attempt {row.attempt} changed the task")
