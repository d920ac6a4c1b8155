"""S2: at most one valid settlement for an attempt, and terminal states are final."""

from collections import defaultdict
from collections.abc import Iterator

from fleet.verify.reading import Attempt, History, is_terminal
from fleet.verify.verdict import Finding, Ruling

_ACTIONS = {"QUEUED": "requeue", "SUCCEEDED": "resolve"}


def judge(history: History) -> Ruling:
    """Look at every settlement that a worker believes it made, and at every change of a task that had ended."""
    tested = len(history.endings) or len(history.said["settled"])
    return Ruling([*_twice(history), *_reopened(history), *_undone(history)], tested, "attempts that ended")


def _twice(history: History) -> Iterator[Finding]:
    leases: dict[Attempt, set[str]] = defaultdict(set)
    successes: dict[str, set[int]] = defaultdict(set)
    for line in history.said["settled"]:
        leases[line["task"], line["attempt"]].add(line["lease"])
        if line.get("outcome") == "succeeded":
            successes[line["task"]].add(line["attempt"])
    for (task, attempt), holders in leases.items():
        if len(holders) > 1:
            yield Finding(task, f"attempt {attempt} was settled under two leases: {', '.join(sorted(holders))}")
    for task, attempts in successes.items():
        if len(attempts) > 1:
            yield Finding(task, f"succeeded more than once, in attempts {sorted(attempts)}")
    ends: dict[Attempt, int] = defaultdict(int)
    for end in history.endings:
        ends[end.old.id, end.old.attempt] += 1
    for (task, attempt), count in ends.items():
        if count > 1:
            yield Finding(task, f"attempt {attempt} was ended {count} times")


def _reopened(history: History) -> Iterator[Finding]:
    """A terminal task may be judged by an operator, in a transaction that says so, and deleted; nothing else."""
    audited = {(each.txid, each.new.subject, each.new.action) for each in history.changes["audit"] if each.new}
    for change in history.task_changes:
        old, new = change.old, change.new
        if old is None or new is None or not is_terminal(old):
            continue
        if (old.state, old.attempt, old.failure_code) != (new.state, new.attempt, new.failure_code):
            action = _ACTIONS.get(new.state) if old.state == "FAILED" else None
            if action is None or (change.txid, old.id, action) not in audited:
                yield Finding(old.id, f"was {old.state} after attempt {old.attempt}, and became {new.state}")
        elif old.resolved_at != new.resolved_at and (change.txid, old.id, "discard") not in audited:
            yield Finding(old.id, "was laid aside without a trace of who did it")


def _undone(history: History) -> Iterator[Finding]:
    """A success that a worker was told of is there in the end."""
    for line in history.said["settled"]:
        row = history.tasks.get(line["task"])
        if row is not None and line.get("outcome") == "succeeded" and row.state != "SUCCEEDED":
            yield Finding(row.id, f"succeeded in attempt {line['attempt']}, and is {row.state} in the end")
