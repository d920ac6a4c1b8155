"""S16: accepted = the sum over the states + purged; and exported counters agree with the rows."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from fleet.verify.judges.together import NAMES, owed
from fleet.verify.reading import History
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Add up the final rows."""
    if not history.dumped:
        return Ruling([], 0, "final rows to add up: there is no dump of the tables")
    findings = [*_rows(history), *(_counters(history) if history.journaled else _counters_by_rows(history))]
    return Ruling(findings, len(history.tasks), "final rows")


def _rows(history: History) -> Iterator[Finding]:
    """Every task that was made, and not deleted, is there; and none besides."""
    made = {each.new.id for each in history.task_changes if each.old is None and each.new}
    deleted = {each.old.id for each in history.task_changes if each.new is None and each.old}
    for task in sorted(made - deleted - history.tasks.keys()):
        yield Finding(task, "was made, was not deleted, and is not there")
    if len(history.whole) == len(history.by_task) and history.journaled:
        for task in sorted(history.tasks.keys() - made):
            yield Finding(task, "is there, and nothing made it")


def _counters(history: History) -> Iterator[Finding]:
    """With a journal: every counter against everything that should have been counted, from the first row on."""
    if len(history.whole) != len(history.by_task):
        return  # the journal began later than the counters
    expected: Counter[tuple[str, str, str]] = Counter()
    tasks: dict[tuple[str, str, str], str | None] = {}
    for due in owed(history):
        expected[due.what] += 1
        tasks.setdefault(due.what, due.task)
    counted = _final(history)
    for what in dict.fromkeys([*expected, *counted]):  # in the order in which they happened
        if expected[what] != counted[what]:
            words = (
                f"{' '.join(filter(None, what))} is counted {counted[what]} times, and happened {expected[what]} times"
            )
            yield Finding(tasks.get(what), words)


def _counters_by_rows(history: History) -> Iterator[Finding]:
    """Without one: what the rows alone can tell, as long as none was purged."""
    counted: Counter[str] = Counter()
    for (name, _, _), number in _final(history).items():
        counted[name] += number
    if counted["purged"]:
        return
    failed = [row for row in history.tasks.values() if row.state == "FAILED"]
    lost = [row for row in history.ended.values() if row.outcome == "lost"]
    reaped = sum(row.state == "REAPED" for row in history.rows["lease"])
    requeued = sum(map(len, history.requeues.values()))
    dead = sum(history.counted("dead_letters").values())
    dead_by_loss = sum(
        number
        for (_, code), number in history.counted("dead_letters").items()
        if code in ("lease_expired", "crash_budget_exhausted")
    )
    cancelled = sum(_is_cancelled_and_lost(history, task) for task in history.tasks)
    first = failed[0].id if failed else None
    if dead != len(failed) + requeued:
        yield Finding(first, f"{dead} dead letters are counted; {len(failed)} failed, {requeued} were put back")
    if counted["reclaims"] + dead_by_loss + cancelled != len(lost):
        words = f"{len(lost)} attempts were lost; {counted['reclaims']} reclaims and {dead_by_loss} dead letters are counted"
        yield Finding(lost[0].task_id if lost else None, words)
    if counted["fence_rejections"] != len(history.late):
        late = next(iter(history.late), None)
        words = f"{len(history.late)} late reports are kept, {counted['fence_rejections']} are counted"
        yield Finding(late[0] if late else None, words)
    if counted["lease_expirations"] < reaped:
        yield Finding(None, f"{reaped} leases are REAPED, {counted['lease_expirations']} are counted")


def _is_cancelled_and_lost(history: History, task: str) -> bool:
    row = history.tasks[task]
    ended = history.ended.get((task, row.attempt))
    return row.state == "CANCELLED" and ended is not None and ended.outcome == "lost"


def _final(history: History) -> Counter[tuple[str, str, str]]:
    found: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for row in history.counter_rows:
        if row.name in NAMES:
            found[row.name, row.queue, row.reason] += row.value
    return Counter(found)
