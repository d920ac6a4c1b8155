"""S17: unknown is never reported as failed."""

from collections import defaultdict
from collections.abc import Iterator

from fleet.verify.reading import History, Operation
from fleet.verify.requests import asked_for, key_of, strangers
from fleet.verify.verdict import Finding, Ruling

_WHAT = ("submit", "cancel", "requeue", "resolve", "discard")


def judge(history: History) -> Ruling:
    """Look for tasks that are there although their client was told that the submission had failed."""
    doubtful = [each for what in _WHAT for each in history.operations(what) if each.phase == "info"]
    findings = [*_named(history), *_with_a_key(history), *_without_a_key(history)]
    return Ruling(findings, len(doubtful), "requests whose answer was lost")


def _named(history: History) -> Iterator[Finding]:
    """A client may know the id that its submission brought along, though it was told that it had failed."""
    told = {each.task for each in history.operations("submit") if each.phase == "ok"}
    for operation in history.operations("submit"):
        task = operation.task
        if operation.phase == "fail" and task and task not in told and (task in history.tasks or task in history.whole):
            yield Finding(task, "was made, and its client was told that the submission had failed")


def _with_a_key(history: History) -> Iterator[Finding]:
    phases: dict[object, set[str]] = defaultdict(set)
    for operation in history.operations("submit"):
        conflict = operation.phase == "fail" and _is_conflict(operation)
        phases[key_of(operation.asked)].add("conflict" if conflict else operation.phase)
    for row in history.submission_rows:
        if phases.get((row.scope, row.key)) == {"fail"}:
            yield Finding(
                row.task_id, f"was made, and all clients with its key {row.key!r} were told that it had failed"
            )


def _without_a_key(history: History) -> Iterator[Finding]:
    plain: dict[str, list[Operation]] = defaultdict(list)
    doubtful: dict[str, int] = defaultdict(int)
    for operation in history.operations("submit"):
        asked = asked_for(operation)
        if operation.phase == "info":
            doubtful[asked] += 1
        elif operation.phase == "fail" and key_of(operation.asked) is None:
            plain[asked].append(operation)
    unknown = strangers(history)
    for asked, failed in plain.items():
        for task in unknown.get(asked, [])[doubtful[asked] :][: len(failed)]:
            yield Finding(task, "was made, and its client was told that the submission had failed")


def _is_conflict(operation: Operation) -> bool:
    """The key was somebody else's: that is a true failure, and says that the key has a task."""
    return operation.answer.get("status") in (409, 422) or "idempotency key" in str(operation.answer.get("error", ""))
