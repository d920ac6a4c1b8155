"""S1: no accepted task is lost."""

from collections.abc import Iterator

from fleet.verify.reading import History, is_terminal
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Look for every task that a client was told of, in the final rows or among what was rightly deleted."""
    accepted = [each.task for each in history.operations("submit") if each.phase == "ok" and each.task]
    if not history.dumped:
        return Ruling([], 0, "accepted tasks that could be looked for in a dump of the final tables")
    findings = [*_deleted_alive(history), *_missing(history, accepted)]
    return Ruling(findings, len(set(accepted)), "accepted tasks")


def _deleted_alive(history: History) -> Iterator[Finding]:
    for change in history.task_changes:
        if change.old is None or change.new is not None:
            continue
        if not is_terminal(change.old):
            yield Finding(change.old.id, f"was deleted while it was {change.old.state}")
        elif change.old.state == "FAILED" and change.old.resolved_at is None:
            yield Finding(change.old.id, "was deleted while it was a dead letter that nobody had resolved")


def _missing(history: History, accepted: list[str]) -> Iterator[Finding]:
    deleted = {each.old.id for each in history.task_changes if each.old is not None and each.new is None}
    missing = [task for task in dict.fromkeys(accepted) if task not in history.tasks and task not in deleted]
    purged = 0 if history.journaled else sum(history.counted("purged").values())
    if len(missing) > purged:
        for task in missing:
            yield Finding(task, f"was accepted and is gone; {purged} tasks were purged, {len(missing)} are missing")
