"""What must hold after any schedule: of every change that was made, of what is left, and of what everybody was told."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from fleet.task import Cancelled, Errored, Outcome, Released, State, Succeeded
from tests.simulation.world import Ledger

Json = dict[str, Any]

TERMINAL = ("SUCCEEDED", "FAILED", "CANCELLED")
KEPT = ("id", "queue", "name", "args", "priority", "max_attempts", "max_losses", "idempotent", "created_at")
EDGES = {
    ("QUEUED", "RUNNING"): "claim",
    ("RUNNING", "SUCCEEDED"): "succeed",
    ("QUEUED", "CANCELLED"): "cancel",
    ("QUEUED", "FAILED"): "expired",
    ("FAILED", "QUEUED"): "requeue",
}
ENDS = ("succeed", "lost", "error", "released", "cancelled")


class Edge(NamedTuple):
    """One change of one task, and what it was."""

    kind: str
    old: Json
    new: Json
    holder: Json | None  # the lease that it is or was held under, as that was then

    @property
    def attempt(self) -> int:
        return int(self.old["attempt"])


def judge(facts: Json, ledger: Ledger) -> list[str]:
    """Return everything that is wrong, each in one line; nothing, if all is well."""
    lives: dict[str, list[Edge]] = defaultdict(list)
    wrong: list[str] = []
    for change in facts["changes"]:
        if change["about"] == "task":
            edge = _edge(change)
            lives[(change["new"] or change["old"])["id"]].append(edge)
        else:
            wrong += _lease_change(change)
    attempts: dict[str, list[Json]] = defaultdict(list)
    for line in facts["attempts"]:
        attempts[line["task_id"]].append(line)
    for task, life in lives.items():
        wrong += [f"{task}: {text}" for text in _life(life)]
        if life[-1].kind != "purged":
            wrong += [f"{task}: {text}" for text in _history(life, attempts[task])]
    wrong += _cleared(facts["changes"])
    wrong += _starts(lives, ledger)
    wrong += _told(lives, ledger)
    wrong += _counters(facts, lives)
    wrong += _submissions(facts, lives, ledger)
    wrong += _left(facts)
    return wrong


def _edge(change: Json) -> Edge:
    old, new = change["old"], change["new"]
    return Edge(_kind(old, new), old or new, new or old, change["holder"])


def _kind(old: Json | None, new: Json | None) -> str:
    """Name the change; an edge that is not drawn has the name of its states."""
    if old is None or new is None:
        gone = old is not None and old["state"] not in TERMINAL
        return "submitted" if old is None else "purged while it was not terminal" if gone else "purged"
    edge = (old["state"], new["state"])
    if old["state"] == new["state"]:
        return _touch(old, new)
    if edge == ("RUNNING", "SUCCEEDED") or old["state"] != "RUNNING":
        return EDGES.get(edge, f"{edge[0]} → {edge[1]}")
    return _end(old, new)


def _touch(old: Json, new: Json) -> str:
    """Name a change that leaves the state as it is."""
    state = new["state"]
    if state == "RUNNING" and new["cancel_requested"] and old["lease_id"] == new["lease_id"]:
        return "asked"
    if state == "QUEUED" and old["expires_at"] != new["expires_at"]:
        return "aged"  # by the test, which lets time pass
    if state == "FAILED" and old["resolved_at"] is None and new["resolved_at"] is not None:
        return "discard"
    return f"{state} was changed"


def _end(old: Json, new: Json) -> str:
    if new["losses"] > old["losses"]:
        return "lost"
    if new["failures"] > old["failures"]:
        return "error"
    return "cancelled" if new["state"] == "CANCELLED" else "released"


def _lease_change(change: Json) -> Iterator[str]:
    old, new = change["old"], change["new"]
    step = (old["state"], new["state"])
    if step not in [("LIVE", "DRAINING"), ("DRAINING", "RELEASED"), ("LIVE", "REAPED"), ("DRAINING", "REAPED")]:
        if old["state"] != new["state"]:
            yield f"a lease went {step}"
        if old["state"] in ("REAPED", "RELEASED") and old["expires_at"] != new["expires_at"]:
            yield "a lease was renewed that was over"
    if new["state"] == "REAPED" != old["state"] and old["expires_at"] > change["at"]:
        yield "a lease was reaped that had not expired"


def _cleared(changes: list[Json]) -> Iterator[str]:
    """A lease is cleared only when nothing runs under it any more, and nothing that is on its way will."""
    holders: dict[str, str | None] = {}
    for change in changes:
        old, new = change["old"], change["new"]
        if change["about"] == "task":
            holders[(new or old)["id"]] = new and new["lease_id"]
        elif new["cleared_at"] != old["cleared_at"] and new["id"] in holders.values():
            yield f"the lease of {new['worker']} was cleared while it held a task"


def _life(life: list[Edge]) -> Iterator[str]:
    """Follow one task from change to change."""
    stopped = False
    for before, edge in zip([None, *life], life, strict=False):
        if edge.kind not in (*EDGES.values(), *ENDS, "submitted", "discard", "asked", "aged", "purged"):
            yield f"no such edge: {edge.kind}"
        if before is not None and before.new != edge.old:
            yield f"a change was lost before {edge.kind}"
        yield from _sums(edge)
        if edge.kind == "lost" and edge.holder and edge.holder["state"] not in ("REAPED", "RELEASED"):
            yield f"attempt {edge.attempt} was taken from a lease that is {edge.holder['state']}"
        if edge.kind == "claim":
            yield from _claim(edge, stopped=stopped)
        stopped = edge.kind in ("asked", "cancel") or (stopped and edge.kind != "requeue")


def _sums(edge: Edge) -> Iterator[str]:
    """Check what one change did to the numbers of a task, and to what must never change."""
    kind, old, new = edge.kind, edge.old, edge.new
    if any(old[name] != new[name] for name in KEPT):
        yield f"{kind} changed what was accepted"
    if new["attempt"] != old["attempt"] + (kind == "claim"):
        yield f"{kind} moved the attempt from {old['attempt']} to {new['attempt']}"
    if (new["state"] == "RUNNING") != (new["lease_id"] is not None):
        yield f"{kind}: {new['state']} with the lease {new['lease_id']}"
    if new["losses"] > new["max_losses"] or new["losses"] + new["failures"] > new["max_attempts"]:
        yield f"{kind} overran the budget: {new['losses']} losses, {new['failures']} failures"
    charged = new["losses"] + new["failures"] - old["losses"] - old["failures"]
    if kind != "requeue" and charged != (kind in ("lost", "error")):
        yield f"{kind} was charged {charged} times"


def _claim(edge: Edge, *, stopped: bool) -> Iterator[str]:
    if stopped:
        yield "claimed after it was cancelled"
    if edge.holder is None or edge.holder["state"] != "LIVE":
        yield f"claimed under a lease that is {edge.holder and edge.holder['state']}"
    elif edge.holder["expired_before"]:
        yield "claimed under an expired lease"


def _history(life: list[Edge], lines: list[Json]) -> Iterator[str]:
    """Each attempt ended once, and has its line unless it simply succeeded."""
    ends = Counter(edge.attempt for edge in life if edge.kind in ENDS)
    yield from (f"attempt {attempt} ended {times} times" for attempt, times in ends.items() if times != 1)
    if life[-1].new["state"] != "RUNNING" and sorted(ends) != list(range(1, life[-1].new["attempt"] + 1)):
        yield f"of {life[-1].new['attempt']} attempts these ended: {sorted(ends)}"
    written = {line["attempt"]: line["outcome"] for line in lines if not line["late"]}
    expected = {edge.attempt: edge.kind for edge in life if edge.kind in ENDS and edge.kind != "succeed"}
    if set(written) != set(expected):
        yield f"the history is of attempts {sorted(written)}, not {sorted(expected)}"
    for attempt, kind in expected.items():
        outcome = written.get(attempt)
        if kind in ("lost", "error") and outcome != kind:
            yield f"attempt {attempt} ended by {kind}; its line says {outcome}"


def _starts(lives: dict[str, list[Edge]], ledger: Ledger) -> Iterator[str]:
    """Nothing is started twice that must not be, nor by anybody but the holder of that very attempt."""
    started: dict[UUID, list[Any]] = defaultdict(list)
    for start in ledger.starts:
        claims = [edge for edge in lives[str(start.task)] if edge.kind == "claim" and edge.attempt + 1 == start.attempt]
        if [edge.new["lease_id"] for edge in claims] != [str(start.lease)]:
            yield f"{start.task} attempt {start.attempt} was started by who did not hold it"
        started[start.task].append(start)
    for task, starts in started.items():
        numbers = sorted(start.attempt for start in starts)
        if len(set(numbers)) < len(numbers):
            yield f"{task}: one attempt was started twice: {numbers}"
        if all(start.repeatable for start in starts):
            continue
        for first, second in pairwise(numbers):
            if not _excused(lives[str(task)], first, second):
                yield f"{task}: not repeatable, and started as attempt {first} and {second}"


def _excused(life: list[Edge], first: int, second: int) -> bool:
    """Whether the handler itself, or an operator, asked for another start between these two."""
    return any(
        (edge.kind == "requeue" and first <= edge.attempt < second)
        or (edge.kind == "error" and edge.new["state"] == "QUEUED" and edge.attempt == first)
        for edge in life
    )


def _told(lives: dict[str, list[Edge]], ledger: Ledger) -> Iterator[str]:
    """What holders, and who cancelled or judged, were told is what happened."""
    for told in ledger.told:
        life = lives[str(told.task)]
        ends = [edge for edge in life if edge.kind in ENDS and edge.attempt == told.attempt]
        so = [edge for edge in ends if edge.old["lease_id"] == str(told.lease) and edge.kind in _kinds(told.outcome)]
        if bool(so) != told.accepted and not (so and life[-1].kind == "purged"):
            yield f"{told.task}: told {told}, but it ended as {[edge.kind for edge in ends]}"
    for task, state, changed in ledger.cancels:
        kinds = Counter(edge.kind for edge in lives[str(task)])
        reached = any(edge.new["state"] == state for edge in lives[str(task)])
        if not reached or (changed and not kinds["cancel" if state is State.CANCELLED else "asked"]):
            yield f"{task}: the one who cancelled was told {state}, {changed}; there was {dict(kinds)}"
    for kind, tasks in (("requeue", ledger.requeued), ("discard", ledger.discarded)):
        for task, times in Counter(tasks).items():
            if sum(edge.kind == kind for edge in lives[str(task)]) < times:
                yield f"{task}: {times} were told of a {kind} that was not"


def _kinds(outcome: Outcome) -> tuple[str, ...]:
    match outcome:
        case Succeeded():
            return ("succeed",)
        case Errored():
            return ("error",)
        case Released():
            return ("released", "cancelled")
        case Cancelled():
            return ("cancelled",)


def _counters(facts: Json, lives: dict[str, list[Edge]]) -> Iterator[str]:
    """What was counted is what happened."""
    edges = [edge for life in lives.values() for edge in life]
    counted: Counter[tuple[str, str]] = Counter()
    for line in facts["counters"]:
        counted[line["name"], line["reason"]] += line["value"]
    expected: Counter[tuple[str, str]] = Counter()
    for edge in edges:
        if edge.kind in (*ENDS, "expired") and edge.new["state"] == "FAILED":
            expected["dead_letters", edge.new["failure_code"]] += 1
        elif edge.kind == "lost" and edge.new["state"] == "QUEUED":
            expected["reclaims", ""] += 1
        elif edge.kind == "purged":
            expected["purged", ""] += 1
    for change in facts["changes"]:
        if (
            change["about"] == "lease"
            and change["new"]
            and change["new"]["state"] == "REAPED" != change["old"]["state"]
        ):
            expected["lease_expirations", ""] += 1
    late = sum(line["late"] for line in facts["attempts"])
    expected["fence_rejections", ""] = counted["fence_rejections", ""] if expected["purged", ""] else late
    if +counted != +expected:
        yield f"counted {dict(+counted)}, but there was {dict(+expected)}"


def _submissions(facts: Json, lives: dict[str, list[Edge]], ledger: Ledger) -> Iterator[str]:
    """One key is one task, whoever asked and however often."""
    by_key = {line["key"]: line for line in facts["submissions"]}
    for submission, task, _ in ledger.submitted:
        if by_key[submission.key or ""]["task_id"] != str(task):
            yield f"the key {submission.key} was answered with {task}, which is not its task"
        if by_key[submission.key or ""]["fingerprint"] != submission.fingerprint:
            yield f"the key {submission.key} was accepted for another request"
    for submission in ledger.conflicts:
        if by_key[submission.key or ""]["fingerprint"] == submission.fingerprint:
            yield f"the key {submission.key} was refused for its own request"
    made = set(lives) - {str(task) for task in ledger.before}
    if made != {line["task_id"] for line in facts["submissions"]}:
        yield f"{len(made)} tasks were made under {len(by_key)} keys"


def _left(facts: Json) -> Iterator[str]:
    """Everything has come to an end: nothing waits, nothing runs, no lease that is over still waits for its sweep."""
    for task in facts["tasks"]:
        if task["state"] not in TERMINAL:
            yield f"{task['id']} is {task['state']} for ever"
    for lease in facts["leases"]:
        if lease["state"] in ("REAPED", "RELEASED") and lease["cleared_at"] is None:
            yield f"the lease of {lease['worker']} is {lease['state']} and never cleared"
