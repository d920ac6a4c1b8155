"""S8: claims are exclusive, attempts are numbered 1, 2, 3, … and a claim brings no more than it asked for."""

from collections import defaultdict
from collections.abc import Iterator

from fleet.verify.history import Line
from fleet.verify.reading import Attempt, Change, History, numbers
from fleet.verify.rows import TaskRow
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Look at every claim in the journal, at every start that a worker wrote down, and at the final rows."""
    findings = [
        *(finding for change in history.task_changes for finding in _numbered(change)),
        *_started(history),
        *_without_gap(history),
        *_asked_for(history),
    ]
    return Ruling(findings, len(history.claims) or len(history.said["started"]), "claims")


def _numbered(change: Change[TaskRow]) -> Iterator[Finding]:
    old, new = change.old, change.new
    if new is None:
        return
    if old is None:
        if new.attempt != 0:
            yield Finding(new.id, f"began with attempt {new.attempt}")
    elif (old.state, new.state) == ("RUNNING", "RUNNING") and old.lease_id != new.lease_id:
        yield Finding(new.id, f"was claimed under lease {new.lease_id} while {old.lease_id} held it")
    else:
        due = old.attempt + ((old.state, new.state) == ("QUEUED", "RUNNING"))
        if new.attempt != due:
            yield Finding(new.id, f"went from attempt {old.attempt} to {new.attempt}, which should be {due}")


def _started(history: History) -> Iterator[Finding]:
    """Each attempt is started by one worker, once, and under the lease that claimed it."""
    held: dict[Attempt, str | None] = {
        (each.new.id, each.new.attempt): each.new.lease_id for each in history.claims if each.new
    }
    starts: dict[Attempt, list[Line]] = defaultdict(list)
    for line in history.said["started"]:
        starts[line["task"], line["attempt"]].append(line)
    for (task, attempt), found in starts.items():
        if len(found) > 1:
            who = ", ".join(sorted({line["by"] for line in found}))
            yield Finding(task, f"attempt {attempt} was started {len(found)} times, by {who}")
        lease = held.get((task, attempt))
        for line in found:
            if task in history.whole and lease != line["lease"]:
                words = f"attempt {attempt} was started under lease {line['lease']}, but {lease} had claimed it"
                yield Finding(task, words)


def _without_gap(history: History) -> Iterator[Finding]:
    """Every attempt but one that succeeded or runs has a line in the history."""
    if not history.dumped:
        return
    known: dict[str, list[int]] = defaultdict(list)
    for task, attempt in history.ended:
        known[task].append(attempt)
    for task, row in history.tasks.items():
        last = row.attempt - (row.state in ("SUCCEEDED", "RUNNING"))
        if sorted(known[task]) != list(range(1, last + 1)):
            words = f"is {row.state} in attempt {row.attempt}, and its history has the attempts"
            yield Finding(task, f"{words} {numbers(sorted(known[task])) or 'none'} instead of 1 to {last}")


def _asked_for(history: History) -> Iterator[Finding]:
    for line in history.said["claimed"]:
        if line["count"] > line.get("asked", line["count"]):
            yield Finding(None, f"{line['by']} asked for {line['asked']} tasks and was given {line['count']}")
