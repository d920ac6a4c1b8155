"""What a judge finds, and what becomes of it: pass, fail or unknown."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Answer(StrEnum):
    """`unknown`: the run did not exercise the promise, so it says nothing about it."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """Something that must not be. `task`: the id of the one it happened to, where it happened to one."""

    task: str | None
    words: str


class Ruling(NamedTuple):
    """What one judge has to say: its findings, and how often the run put the promise to the test."""

    findings: Sequence[Finding]
    tested: int
    by: str  # what tests it, as a plural: "reports that were refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one promise. `task` and `story` are of the first finding, and empty for all but a fail."""

    code: str
    title: str
    answer: Answer
    detail: str
    findings: tuple[Finding, ...] = ()
    task: str | None = None
    story: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts on all promises, in their order."""

    folder: str
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed. What is unknown is no failure, and no success."""
        return not any(each.answer is Answer.FAIL for each in self.verdicts)

    def __getitem__(self, code: str) -> Verdict:
        return next(each for each in self.verdicts if each.code == code)
