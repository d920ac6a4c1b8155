"""S6: one budget, whatever mix of errors, time-outs and losses spends it."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from fleet.verify.reading import Change, History
from fleet.verify.rows import TaskRow
from fleet.verify.verdict import Finding, Ruling

COSTLY = ("error", "lost")


def judge(history: History) -> Ruling:
    """Count what every attempt cost, step by step where there is a journal, and once more over the final rows."""
    spent = [row for row in history.ended.values() if row.outcome in COSTLY]
    findings = [
        *(finding for change in history.task_changes for finding in _step(history, change)),
        *_sums(history),
    ]
    return Ruling(findings, len(spent), "attempts that ended badly")


def _step(history: History, change: Change[TaskRow]) -> Iterator[Finding]:
    old, new = change.old, change.new
    if old is None or new is None:
        return
    outcome = None
    if old.state == "RUNNING" and new.state != "RUNNING":
        row = history.ended.get((old.id, old.attempt))
        if row is None and new.state != "SUCCEEDED":
            return  # nobody knows what it should have cost; another promise is broken by that
        outcome = row.outcome if row else None
    due = (old.failures + (outcome == "error"), old.losses + (outcome == "lost"))
    if (old.state, new.state) == ("FAILED", "QUEUED"):
        due = (0, 0)
    if (new.failures, new.losses) != due:
        words = f"attempt {old.attempt} ended as {outcome}" if outcome else f"went from {old.state} to {new.state}"
        counted = (
            f"with {new.failures} failures and {new.losses} losses on its account instead of {due[0]} and {due[1]}"
        )
        yield Finding(old.id, f"{words}, {counted}")
    if old.state == "RUNNING" and outcome in COSTLY:
        yield from _bounds(new)


def _bounds(row: TaskRow) -> Iterator[Finding]:
    spent = row.failures + row.losses
    account = f"{row.failures} failures and {row.losses} losses of {row.max_attempts} attempts, {row.max_losses} losses"
    if spent > row.max_attempts or row.losses > row.max_losses:
        yield Finding(row.id, f"spent more than its budget: {account}")
    exhausted = spent >= row.max_attempts or row.losses >= row.max_losses
    if row.state == "QUEUED" and exhausted:
        yield Finding(row.id, f"was put back although its budget is spent: {account}")
    if row.failure_code == "crash_budget_exhausted" and not exhausted:
        yield Finding(row.id, f"failed for a spent budget that is not spent: {account}")


def _sums(history: History) -> Iterator[Finding]:
    """The account of each final row is what its history says since an operator last opened it."""
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    last = {task: max(attempts) for task, attempts in history.requeues.items()}
    for (task, attempt), ended in history.ended.items():
        if attempt > last.get(task, 0):
            spent[task][ended.outcome] += 1
    for task, row in history.tasks.items():
        if last.get(task, 0) == 2**31:
            continue
        yield from _bounds(row)
        if (row.failures, row.losses) != (spent[task]["error"], spent[task]["lost"]):
            words = f"{row.failures} failures and {row.losses} losses are on its account, but its history has"
            yield Finding(task, f"{words} {spent[task]['error']} and {spent[task]['lost']}")
