"""S18: a drain claims no more, keeps its lease until the last handler ended, and hands back at no cost."""

from collections import defaultdict
from collections.abc import Iterator

from fleet.verify.reading import Change, History
from fleet.verify.rows import LeaseRow, TaskRow
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Follow every lease that was drained."""
    draining = [each for each in history.lease_changes if each.new and each.new.state == "DRAINING"]
    leases = {each.new.id for each in draining if each.new}
    findings = [
        *(finding for claim in history.claims for finding in _claimed(history, claim)),
        *(finding for change in history.lease_changes for finding in _given_up_too_soon(history, change)),
        *_paid(history, leases),
        *_started_after(history),
    ]
    return Ruling(findings, len(leases) or _drained_workers(history), "leases that were drained")


def _drained_workers(history: History) -> int:
    return sum(line["by"].startswith("worker") for line in history.said["drain"])


def _claimed(history: History, claim: Change[TaskRow]) -> Iterator[Finding]:
    row = claim.new
    before = history.lease_before(row.lease_id, claim.n) if row and row.lease_id else None
    if row and before and before.new and before.new.state == "DRAINING":
        yield Finding(row.id, f"attempt {row.attempt} was claimed under lease {row.lease_id}, which was draining")


def _given_up_too_soon(history: History, change: Change[LeaseRow]) -> Iterator[Finding]:
    """DRAINING → RELEASED only when it holds nothing any more."""
    if not (change.new and change.old and change.old.state != "RELEASED" and change.new.state == "RELEASED"):
        return
    held: dict[str, int] = {}
    for each in history.holdings[change.new.id]:
        if each.n > change.n:
            break
        if each.new and each.new.lease_id == change.new.id:
            held[each.new.id] = each.new.attempt
        elif each.old:
            held.pop(each.old.id, None)
    for task, attempt in held.items():
        yield Finding(task, f"attempt {attempt} ran under lease {change.new.id} when that was released")


def _paid(history: History, leases: set[str]) -> Iterator[Finding]:
    """What was handed back, and what had not been started, costs nothing and fails nothing."""
    started = {(line["task"], line["attempt"]) for line in history.said["started"]}
    recorded = {line["lease"] for line in history.said["started"]}
    for end in history.endings:
        old, new = end.old, end.new
        if end.outcome == "released" and (new.failures, new.losses) != (old.failures, old.losses):
            yield Finding(old.id, f"attempt {old.attempt} was handed back, and that was charged to the task")
        never = old.lease_id in recorded and (old.id, old.attempt) not in started
        if old.lease_id in leases and never and new.failure_code == "interrupted":
            yield Finding(old.id, f"attempt {old.attempt} was never started, and failed as interrupted by the drain")


def _started_after(history: History) -> Iterator[Finding]:
    """No worker starts anything after it has said that it drains."""
    since: dict[str, float] = {}
    leases: dict[str, set[str]] = defaultdict(set)
    for line in history.lines:
        if line["what"] == "lease_granted" and line["by"] not in since:
            leases[line["by"]].add(line["lease"])
        elif line["what"] == "drain":
            since.setdefault(line["by"], line["at"])
        elif line["what"] == "started" and line["by"] in since and line["lease"] in leases[line["by"]]:
            yield Finding(line["task"], f"attempt {line['attempt']} was started by {line['by']}, which was draining")
