"""S10: only the edges drawn in the design happen."""

from collections.abc import Iterator

from fleet.verify.reading import Change, History
from fleet.verify.rows import TERMINAL, TaskRow
from fleet.verify.verdict import Finding, Ruling

_EDGES = {
    ("QUEUED", "RUNNING"),
    ("QUEUED", "CANCELLED"),
    ("QUEUED", "FAILED"),
    ("RUNNING", "SUCCEEDED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "CANCELLED"),
    ("RUNNING", "QUEUED"),
    ("FAILED", "QUEUED"),
    ("FAILED", "SUCCEEDED"),
}


def judge(history: History) -> Ruling:
    """Look at every change of every task."""
    findings = [finding for change in history.task_changes for finding in _edge(change)]
    moves = sum(1 for each in history.task_changes if each.old and each.new and each.old.state != each.new.state)
    return Ruling(findings, moves, "changes of state while the journal was kept")


def _edge(change: Change[TaskRow]) -> Iterator[Finding]:
    old, new = change.old, change.new
    if new is None:
        return
    if old is None:
        if new.state != "QUEUED":
            yield Finding(new.id, f"began as {new.state}")
        return
    if old.state != new.state and (old.state, new.state) not in _EDGES:
        yield Finding(new.id, f"went from {old.state} to {new.state}")
    if old.state == new.state and old.state in TERMINAL and old.lease_id != new.lease_id:
        yield Finding(new.id, f"was changed while it was {old.state}")
    if (new.state == "RUNNING") != (new.lease_id is not None):
        yield Finding(new.id, f"is {new.state} with lease {new.lease_id}")
    if (new.state == "FAILED") != (new.failure_code is not None):
        yield Finding(new.id, f"is {new.state} with the failure code {new.failure_code}")
    if (old.state, new.state) == ("QUEUED", "FAILED") and new.failure_code != "expired":
        yield Finding(new.id, f"failed without having run, as {new.failure_code}")
