"""S7: the same key and the same request make the same task, however often the answer was lost."""

from collections import defaultdict
from collections.abc import Iterator

from fleet.verify.reading import History, Operation
from fleet.verify.requests import Key, asked_for, key_of, strangers
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Compare the answers that each key was given, and look for tasks that a repeat made in secret."""
    keyed: dict[Key, list[Operation]] = defaultdict(list)
    for operation in history.operations("submit"):
        key = key_of(operation.asked)
        if key is not None:
            keyed[key].append(operation)
    repeated = sum(len(operations) > 1 for operations in keyed.values())
    findings = [finding for key, operations in keyed.items() for finding in _of_one_key(history, key, operations)]
    return Ruling([*findings, *_secret(history, keyed)], repeated, "keys that were used more than once")


def _of_one_key(history: History, key: Key, operations: list[Operation]) -> Iterator[Finding]:
    told = [each for each in operations if each.phase == "ok" and each.task]
    tasks = list(dict.fromkeys(each.task for each in told if each.task))
    if len(tasks) > 1:
        yield Finding(tasks[1], f"the key {key[1]!r} made more than one task: {', '.join(tasks)}")
    if len({asked_for(each) for each in told}) > 1:
        yield Finding(tasks[0], f"the key {key[1]!r} was accepted for two different requests")
    if sum(each.answer.get("created") is True for each in told) > 1:
        yield Finding(tasks[0], f"the key {key[1]!r} was said to have made its task more than once")
    for row in history.submission_rows:
        if (row.scope, row.key) == key and tasks and row.task_id not in tasks:
            yield Finding(
                row.task_id, f"the key {key[1]!r} belongs to this task, and its client was told of {tasks[0]}"
            )


def _secret(history: History, keyed: dict[Key, list[Operation]]) -> Iterator[Finding]:
    """A task that nobody was told of, while all who could have asked for it were told of another."""
    if not keyed:
        return
    possible: dict[str, int] = defaultdict(int)  # so many tasks may have been made without an answer
    for operation in history.operations("submit"):
        if key_of(operation.asked) is None and operation.phase != "ok":
            possible[asked_for(operation)] += 1
    settled = set()
    for operations in keyed.values():
        asked = asked_for(operations[0])
        if any(each.phase == "ok" for each in operations):
            settled.add(asked)
        else:
            possible[asked] += 1
    unknown = strangers(history)
    for asked in settled:
        for task in unknown.get(asked, [])[possible[asked] :]:
            yield Finding(task, "is a second task for a key whose clients were all told of the first")
