"""S20: a worker claims only names that it has handlers for."""

from collections.abc import Iterator

from fleet.verify.reading import History
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Compare the name of each task that was claimed with what the worker had said that it can run."""
    known = {line["lease"]: set(line["handlers"]) for line in history.said["lease_granted"] if "handlers" in line}
    names = {row.id: row.name for row in history.tasks.values()}
    names |= {each.new.id: each.new.name for each in history.task_changes if each.new}
    foreign = [name for name in names.values() if any(name not in handlers for handlers in known.values())]
    findings = [*_claimed(history, known), *_started(history, known)]
    return Ruling(findings, len(foreign), "tasks that some worker had no handler for")


def _claimed(history: History, known: dict[str, set[str]]) -> Iterator[Finding]:
    for claim in history.claims:
        row = claim.new
        if row and row.lease_id in known and row.name not in known[row.lease_id]:
            yield Finding(row.id, f"{row.name} was claimed under lease {row.lease_id}, whose worker cannot run it")


def _started(history: History, known: dict[str, set[str]]) -> Iterator[Finding]:
    for line in history.said["started"]:
        if line["lease"] in known and line["name"] not in known[line["lease"]]:
            yield Finding(line["task"], f"{line['name']} was started by {line['by']}, which has no handler for it")
