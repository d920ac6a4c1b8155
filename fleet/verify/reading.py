"""A whole run, read from its folder, in the shape that judges ask for."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from fleet.verify.history import Line, lines
from fleet.verify.rows import (
    TERMINAL,
    AttemptRow,
    AuditRow,
    CounterRow,
    LeaseRow,
    SubmissionRow,
    TaskRow,
    read_row,
)

R = TypeVar("R")
Attempt = tuple[str, int]  # task id, number


class Change(NamedTuple, Generic[R]):
    """One row before and after; None where it was not there. `n` is the order, `began` the arrival of the statement."""

    n: int
    at: float
    began: float
    txid: int
    old: R | None
    new: R | None


class Ending(NamedTuple):
    """An attempt that left RUNNING. `outcome` is None where the history says nothing of it."""

    n: int
    at: float
    txid: int
    old: TaskRow
    new: TaskRow
    outcome: str | None


class Operation(NamedTuple):
    """What a client asked for and what it heard: `phase` is ok, fail or info; info, too, where it heard nothing."""

    asked: Line
    phase: str
    answer: Line

    @property
    def task(self) -> str | None:
        found = self.answer.get("task") or self.asked.get("task")
        return None if found is None else str(found)


@dataclass(eq=False)
class History:
    """Lines in the order of their clocks; changes in the order of the database; rows as they were in the end."""

    lines: list[Line] = field(default_factory=list)
    changes: dict[str, list[Change[Any]]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    dumped: bool = False
    _operations: dict[str, list[Operation]] = field(default_factory=dict)

    @property
    def journaled(self) -> bool:
        return any(self.changes.values())

    @cached_property
    def tasks(self) -> dict[str, TaskRow]:
        """The final rows, by id."""
        return {row.id: row for row in self.rows["task"]}

    @property
    def task_changes(self) -> list[Change[TaskRow]]:
        return self.changes["task"]

    @property
    def lease_changes(self) -> list[Change[LeaseRow]]:
        return self.changes["lease"]

    @property
    def counter_changes(self) -> list[Change[CounterRow]]:
        return self.changes["counter"]

    @property
    def counter_rows(self) -> list[CounterRow]:
        return self.rows["counter"]

    @property
    def submission_rows(self) -> list[SubmissionRow]:
        return self.rows["submission"]

    @cached_property
    def audits(self) -> list[AuditRow]:
        """Every audit row; it is never deleted."""
        return self.rows["audit"] or [each.new for each in self.changes["audit"] if each.new]

    @cached_property
    def said(self) -> dict[str, list[Line]]:
        """The lines by what they say."""
        found: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            found[line["what"]].append(line)
        return found

    @cached_property
    def by_task(self) -> dict[str, list[Change[TaskRow]]]:
        return _grouped(self.task_changes)

    @cached_property
    def by_lease(self) -> dict[str, list[Change[LeaseRow]]]:
        return _grouped(self.lease_changes)

    @cached_property
    def ended(self) -> dict[Attempt, AttemptRow]:
        """How attempts ended that did not succeed."""
        return {(row.task_id, row.attempt): row for row in self._attempts if not row.late}

    @cached_property
    def late(self) -> dict[Attempt, AttemptRow]:
        """The reports that were refused."""
        return {(row.task_id, row.attempt): row for row in self._attempts if row.late}

    @cached_property
    def endings(self) -> list[Ending]:
        """Every change in which a task left RUNNING."""
        return [
            Ending(each.n, each.at, each.txid, each.old, each.new, self._outcome(each.old, each.new))
            for each in self.task_changes
            if each.old and each.new and each.old.state == "RUNNING" and each.new.state != "RUNNING"
        ]

    @cached_property
    def claims(self) -> list[Change[TaskRow]]:
        """Every change in which a task came under a lease."""
        return [
            each
            for each in self.task_changes
            if each.new
            and each.new.state == "RUNNING"
            and (each.old is None or (each.old.lease_id, each.old.attempt) != (each.new.lease_id, each.new.attempt))
        ]

    @cached_property
    def holdings(self) -> dict[str, list[Change[TaskRow]]]:
        """Lease → the changes by which tasks came under it or left it."""
        found: dict[str, list[Change[TaskRow]]] = defaultdict(list)
        for each in self.task_changes:
            before, after = each.old.lease_id if each.old else None, each.new.lease_id if each.new else None
            for lease in {before, after} - {None} if before != after else ():
                found[str(lease)].append(each)
        return found

    @cached_property
    def requeues(self) -> dict[str, list[int]]:
        """Task → the attempts after which an operator put it back; endless where a client did and no attempt is known."""
        found: dict[str, list[int]] = defaultdict(list)
        for row in self.audits:
            if row.action in ("requeue", "resolve"):
                number = (row.detail or "").rpartition(" ")[2]
                found[row.subject].append(int(number) if number.isdigit() else 2**31)
        if not self.audits:
            for each in self.operations("requeue"):
                if each.phase != "fail" and each.task:
                    found[each.task].append(2**31)
        return found

    @cached_property
    def whole(self) -> frozenset[str]:
        """The tasks whose journal begins with their making."""
        return frozenset(task for task, changes in self.by_task.items() if changes[0].old is None)

    def operations(self, what: str) -> list[Operation]:
        """Return what clients asked for, in order, with the last that each heard."""
        if what not in self._operations:
            self._operations[what] = self._matched(what)
        return self._operations[what]

    def _matched(self, what: str) -> list[Operation]:
        asked: dict[str, Line] = {}
        heard: dict[str, Line] = {}
        for number, line in enumerate(self.said[what]):
            op = str(line.get("op", number))
            if line.get("phase") == "invoke":
                asked[op] = line
            else:
                heard[op] = line
        return [
            Operation(asked.get(op) or heard[op], heard.get(op, {}).get("phase", "info"), heard.get(op, {}))
            for op in dict.fromkeys([*asked, *heard])
        ]

    def counted(self, name: str) -> dict[tuple[str, str], int]:
        """Return a counter's final values by (queue, reason), added up over those who counted."""
        found: dict[tuple[str, str], int] = defaultdict(int)
        for row in self.counter_rows:
            if row.name == name:
                found[row.queue, row.reason] += row.value
        return found

    def lease_before(self, lease: str, n: int) -> Change[LeaseRow] | None:
        """Return the last change of a lease before the n-th change of all."""
        changes = self.by_lease.get(lease, [])
        place = bisect_left(changes, n, key=_number)
        return changes[place - 1] if place else None

    @cached_property
    def _attempts(self) -> list[AttemptRow]:
        made = [each.new for each in self.changes["attempt"] if each.new]
        return [*self.rows["attempt"], *made]

    def _outcome(self, old: TaskRow, new: TaskRow) -> str | None:
        row = self.ended.get((old.id, old.attempt))
        if row is not None:
            return row.outcome
        return "succeeded" if new.state == "SUCCEEDED" else None


def read(folder: Path | str) -> History:
    """Read a run. Raises ValueError for a file that is no history, FileNotFoundError where there is none."""
    if not any(Path(folder).glob("*.jsonl")):
        raise FileNotFoundError(f"there is no history in {folder}: it holds no file *.jsonl")
    history = History()
    for line in lines(folder):
        match line["what"]:
            case "change":
                table = line["table"]
                old, new = read_row(table, line["old"]), read_row(table, line["new"])
                if old is not None or new is not None:
                    history.changes[table].append(Change(line["n"], line["at"], line["began"], line["txid"], old, new))
            case "row":
                history.dumped = True
                history.rows[line["table"]].append(read_row(line["table"], line["row"]))
            case _:
                history.lines.append(line)
    history.lines.sort(key=lambda line: line["at"])
    for changes in history.changes.values():
        changes.sort(key=lambda change: change.n)
    return history


def _number(change: Change[Any]) -> int:
    return change.n


def is_terminal(row: TaskRow | None) -> bool:
    return row is not None and row.state in TERMINAL


def numbers(attempts: Iterable[int]) -> str:
    """Return attempts as a person writes them."""
    return ", ".join(map(str, attempts))


def _grouped(changes: Sequence[Change[Any]]) -> dict[str, list[Change[Any]]]:
    found: dict[str, list[Change[Any]]] = defaultdict(list)
    for change in changes:
        row: Any = change.new or change.old
        found[row.id].append(change)
    return found
