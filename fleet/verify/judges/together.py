"""S11: a change of state, its history and its counters commit together."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from fleet.verify.reading import History
from fleet.verify.rows import OVER
from fleet.verify.verdict import Finding, Ruling

Counted = tuple[str, str, str]  # name, queue, reason
NAMES = ("dead_letters", "reclaims", "lease_expirations", "fence_rejections", "purged")


class Due(NamedTuple):
    """What a transaction must count, and a task that it concerns."""

    txid: int
    what: Counted
    task: str | None


def judge(history: History) -> Ruling:
    """Take the journal transaction by transaction."""
    findings = [*_history_rows(history), *_audit_rows(history), *_counters(history)]
    return Ruling(findings, len(history.endings), "attempts that ended while the journal was kept")


def _history_rows(history: History) -> Iterator[Finding]:
    written = {
        (each.txid, each.new.task_id, each.new.attempt)
        for each in history.changes["attempt"]
        if each.new and not each.new.late
    }
    for end in history.endings:
        if end.new.state != "SUCCEEDED" and (end.txid, end.old.id, end.old.attempt) not in written:
            words = f"attempt {end.old.attempt} ended as {end.new.state}, and that transaction wrote no history of it"
            yield Finding(end.old.id, words)


def _audit_rows(history: History) -> Iterator[Finding]:
    written = {(each.txid, each.new.subject, each.new.action) for each in history.changes["audit"] if each.new}
    for change in history.task_changes:
        old, new = change.old, change.new
        if old is None or new is None:
            continue
        action = {("QUEUED", "CANCELLED"): "cancel", ("FAILED", "QUEUED"): "requeue"}.get((old.state, new.state))
        if action and (change.txid, old.id, action) not in written:
            yield Finding(old.id, f"went from {old.state} to {new.state}, and nothing says who did it")


def _counters(history: History) -> Iterator[Finding]:
    expected: dict[tuple[int, Counted], int] = defaultdict(int)
    concerns: dict[tuple[int, Counted], str | None] = {}
    for due in owed(history):
        expected[due.txid, due.what] += 1
        concerns.setdefault((due.txid, due.what), due.task)
    counted: dict[tuple[int, Counted], int] = defaultdict(int)
    for change in history.counter_changes:
        row = change.new or change.old
        if row is not None and row.name in NAMES:
            by = (change.new.value if change.new else 0) - (change.old.value if change.old else 0)
            counted[change.txid, (row.name, row.queue, row.reason)] += by
    for key in sorted(expected.keys() | counted.keys()):
        if expected[key] != counted[key]:
            txid, what = key
            words = (
                f"transaction {txid} counted {counted[key]} {' '.join(filter(None, what))} instead of {expected[key]}"
            )
            yield Finding(concerns.get(key), words)


def owed(history: History) -> Iterator[Due]:
    """Yield what every change must add one to, by the transaction that must do it."""
    yield from _owed_by_endings(history)
    yield from _owed_by_other_ends(history)
    for lease in history.lease_changes:
        if lease.old and lease.new and lease.old.state not in OVER and lease.new.state == "REAPED":
            yield Due(lease.txid, ("lease_expirations", "", ""), None)
    for late in history.changes["attempt"]:
        if late.new and late.old is None and late.new.late:
            yield from _rejection(history, late.txid, late.new.task_id)


def _owed_by_endings(history: History) -> Iterator[Due]:
    for end in history.endings:
        if end.new.state == "FAILED":
            yield Due(end.txid, ("dead_letters", end.new.queue, end.new.failure_code or ""), end.old.id)
        elif end.new.state == "QUEUED" and end.outcome == "lost":
            yield Due(end.txid, ("reclaims", end.new.queue, ""), end.old.id)


def _owed_by_other_ends(history: History) -> Iterator[Due]:
    """By tasks that expired or were purged."""
    for change in history.task_changes:
        if change.old and change.new is None:
            yield Due(change.txid, ("purged", change.old.queue, ""), change.old.id)
        elif change.old and change.new and (change.old.state, change.new.state) == ("QUEUED", "FAILED"):
            yield Due(change.txid, ("dead_letters", change.new.queue, change.new.failure_code or ""), change.new.id)


def _rejection(history: History, txid: int, task: str) -> Iterator[Due]:
    changes = history.by_task.get(task)
    row = history.tasks.get(task) or (changes and (changes[0].new or changes[0].old))
    if row:
        yield Due(txid, ("fence_rejections", row.queue, ""), task)
