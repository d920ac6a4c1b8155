"""S15: cancel tells the truth: cancelled before it started, requested, or too late."""

from collections.abc import Iterator

from fleet.verify.reading import History, Operation, is_terminal
from fleet.verify.rows import TERMINAL
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Compare each answer with what the task was, and with what became of it."""
    answered = [each for each in history.operations("cancel") if each.phase == "ok" and each.answer.get("answer")]
    findings = [finding for operation in answered for finding in _answer(history, operation)]
    return Ruling(findings, len(answered), "cancels that were answered")


def _answer(history: History, operation: Operation) -> Iterator[Finding]:
    task, answer = operation.task or "", str(operation.answer["answer"])
    if task not in history.tasks and task not in history.by_task:
        return  # purged
    match answer.upper():
        case "CANCELLED":
            yield from _cancelled(history, task)
        case "RUNNING" | "REQUESTED":
            yield from _requested(history, task)
        case state:
            yield from _too_late(history, task, state)


def _cancelled(history: History, task: str) -> Iterator[Finding]:
    row = history.tasks.get(task)
    if row is not None and row.state != "CANCELLED":
        yield Finding(task, f"was said to be cancelled, and is {row.state}")
    for change in history.by_task.get(task, []):
        if change.new and change.new.state == "CANCELLED":
            later = [
                line["attempt"]
                for line in history.said["started"]
                if line["task"] == task and line["attempt"] > change.new.attempt
            ]
            if later:
                yield Finding(task, f"was cancelled, and attempt {later[0]} was started all the same")


def _requested(history: History, task: str) -> Iterator[Finding]:
    changes = history.by_task.get(task, [])
    row = history.tasks.get(task)
    if task in history.whole:
        asked = any(each.new and each.new.state == "RUNNING" and each.new.cancel_requested for each in changes)
    else:
        asked = row is None or row.cancel_requested or task in history.requeues
    if not asked:
        yield Finding(task, "its cancellation was said to be requested, and nothing was asked of its worker")


def _too_late(history: History, task: str, state: str) -> Iterator[Finding]:
    row = history.tasks.get(task)
    wanted = {state} if state in TERMINAL else TERMINAL
    if task in history.whole:
        was = any(each.new is not None and each.new.state in wanted for each in history.by_task[task])
    else:
        was = row is None or is_terminal(row) or task in history.requeues
    if not was:
        yield Finding(task, f"it was said to be too late to cancel it ({state}), and it had not ended")
