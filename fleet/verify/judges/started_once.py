"""S3: what must not be repeated is started at most once, unless an operator or its own Retry says otherwise."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from fleet.verify.reading import Attempt, History
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Look at every two starts of a task whose earlier attempt was not repeatable."""
    once = _not_repeatable(history)
    tried = [each for each in once if each in history.ended]
    findings = [*_started_again(history, once), *_put_back(history)]
    return Ruling(findings, len(tried), "attempts that must not be repeated and did not succeed")


def _not_repeatable(history: History) -> set[Attempt]:
    claimed = {(each.new.id, each.new.attempt) for each in history.claims if each.new and not each.new.repeatable}
    said = {(line["task"], line["attempt"]) for line in history.said["started"] if line.get("repeatable") is False}
    return claimed | said


def _started_again(history: History, once: set[Attempt]) -> Iterator[Finding]:
    starts: dict[str, set[int]] = defaultdict(set)
    for line in (*history.said["started"], *history.said["effect"]):
        starts[line["task"]].add(line["attempt"])
    for task, attempts in starts.items():
        in_order = sorted(attempts)
        for before, after in pairwise(in_order):
            if (task, before) in once and not _excused(history, task, before, after):
                how = history.ended.get((task, before))
                ended = f"ended as {how.outcome}" if how else "ended in a way that is not known"
                yield Finding(
                    task, f"attempt {before} must not be repeated and {ended}, and attempt {after} was started"
                )


def _excused(history: History, task: str, before: int, after: int) -> bool:
    ended = history.ended.get((task, before))
    return (ended is not None and ended.outcome == "error") or any(
        before <= number < after or number == 2**31 for number in history.requeues.get(task, [])
    )


def _put_back(history: History) -> Iterator[Finding]:
    for end in history.endings:
        if end.new.state == "QUEUED" and not end.old.repeatable and end.outcome == "lost":
            yield Finding(end.old.id, f"attempt {end.old.attempt} was lost, must not be repeated, and was put back")
