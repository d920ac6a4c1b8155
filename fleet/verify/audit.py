"""Audit a database at work: what its rows say about each other. What is asked stands in postgres/audit.py."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import psycopg

from fleet.errors import first_line
from fleet.postgres import audit as ask
from fleet.postgres.audit import Found
from fleet.postgres.database import Connection, Database, Statement
from fleet.verify.verdict import Answer

TASKS_MAX = 100_000  # the youngest tasks, and as many rows of the history
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Audited:
    """The outcome of one check. `subjects`: ids of tasks or leases, or names of queues."""

    check: str
    code: str  # the promise that is broken where it fails; empty where it has none
    answer: Answer
    evidence: str
    advice: str | None = None
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name, the promise, and what to do where it fails."""

    name: str
    code: str
    advice: str


_BY_STATEMENT: dict[Check, Statement] = {
    Check(
        "tasks under ended leases",
        "L2",
        "every worker sweeps them each sixth of its TTL: start one, or look for `maintenance` in the workers' logs",
    ): ask.HELD_BY_ENDED,
    Check("tasks without a lease", "L2", "every worker looks for them now and then: start one, and audit again"): (
        ask.ORPHANS
    ),
    Check(
        "expired leases", "L10", "nobody reaps: start a worker, or look for `maintenance` in the workers' logs"
    ): ask.NOT_REAPED,
    Check("queues without a worker", "S20", "start a worker with --queue, or cancel what waits: fleet task list"): (
        ask.UNSERVED
    ),
    Check(
        "accepted tasks",
        "S1",
        "somebody deleted them past the product, or restored an older database: submit them again",
    ): ask.KEYS_WITHOUT_TASKS,
    Check(
        "counters", "S16", "somebody wrote past the product, or emptied the counters: take the rows' numbers for true"
    ): ask.COUNTERS,
}
_PAST_THE_PRODUCT = (
    "somebody wrote past the product, or it has a defect: keep what `fleet task show ID` says, and report it"
)
_OF_TASKS = {
    "attempts": Check("attempts", "S8", _PAST_THE_PRODUCT),
    "budgets": Check("budgets", "S6", _PAST_THE_PRODUCT),
    "states": Check("states", "S10", _PAST_THE_PRODUCT),
}
_HISTORY = Check(
    "history without tasks", "S11", "left by a report that came after its task was purged, or by a delete: harmless"
)


def audit(database: Database, tasks_max: int = TASKS_MAX) -> list[Audited]:
    """Ask everything, change nothing. Raises psycopg.OperationalError where the database cannot be reached.

    What it did not answer in time is unknown, and never called good.
    """
    with ask.visit(database) as connection:
        return list(_all(connection, tasks_max))


def _all(connection: Connection, tasks_max: int) -> Iterator[Audited]:
    for check, statement in _BY_STATEMENT.items():
        yield _guarded([check], partial(_find, connection, statement))[0]
    kinds = list(_OF_TASKS.values())
    yield from _guarded(kinds, lambda: ask.walk_tasks(connection, tasks_max), by_kind=True)
    yield from _guarded([_HISTORY], lambda: ask.walk_history(connection, tasks_max))


def _find(connection: Connection, statement: Statement) -> tuple[None, list[Found]]:
    return None, ask.find(connection, statement)


def _guarded(
    checks: list[Check], question: Callable[[], tuple[int | None, list[Found]]], *, by_kind: bool = False
) -> list[Audited]:
    """Ask for some checks at once; a question that the server cancelled leaves them unknown."""
    try:
        looked, found = question()
    except (
        psycopg.errors.QueryCanceled,
        psycopg.errors.LockNotAvailable,
        psycopg.errors.InsufficientPrivilege,
    ) as error:
        words = first_line(error)
        return [Audited(check.name, check.code, Answer.UNKNOWN, f"not answered: {words}") for check in checks]
    return [
        _judged(check, looked, [each for each in found if not by_kind or each.kind == check.name]) for check in checks
    ]


def _judged(check: Check, looked: int | None, found: list[Found]) -> Audited:
    if not found:
        evidence = "nothing found" if looked is None else f"nothing found in {looked} rows"
        return Audited(check.name, check.code, Answer.PASS, evidence)
    shown = "; ".join(f"{each.subject} {each.words}" for each in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    subjects = tuple(dict.fromkeys(each.subject for each in found))
    return Audited(check.name, check.code, Answer.FAIL, f"{shown}{more}", check.advice, subjects)
