"""What a check is made of: a question for facts, and an opinion on them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from fleet.postgres.examine import Setting, Site
from fleet.postgres.mend import setting as mend_setting

Facts = TypeVar("Facts")

NAMES_SHOWN = 3


class Verdict(StrEnum):
    """What a finding means. UNKNOWN is never OK: it could not be examined."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class Opinion(NamedTuple):
    """What is made of the facts: `evidence` holds them, with their units; `mend` is a statement or a command."""

    verdict: Verdict
    evidence: str
    mend: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    verdict: Verdict
    evidence: str
    mend: str | None


@dataclass(frozen=True, slots=True)
class Check(Generic[Facts]):
    """A check: its name, the question for its facts, and what is made of them."""

    name: str
    question: Callable[[Site], Facts]
    judge: Callable[[Facts], Opinion]


def where(setting: Setting) -> str:
    """Say where a setting was made."""
    return f"source: {setting.source}"


def undo(setting: Setting, wanted: str) -> str | None:
    """Return what takes a setting back; None where it was made by who started the server or the client."""
    return mend_setting(setting.name, wanted, source=setting.source, database=setting.database, role=setting.role)


def together(mends: Iterable[str | None]) -> str | None:
    """Return several mends as one."""
    return "; ".join(each for each in mends if each) or None


def some(names: list[str]) -> str:
    """Return the first few names, and how many more there are."""
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown
