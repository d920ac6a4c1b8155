"""What happens in a demo, step by step, as told to whoever explains it."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from fleet.demo.questions import Held, Holder
from fleet.demo.report import Facts


@dataclass(frozen=True, slots=True)
class DatabaseReady:
    """The schema is there, and nothing in it."""


@dataclass(frozen=True, slots=True)
class WorkersReady:
    """Every worker process holds its lease."""

    workers: tuple[Holder, ...]
    ttl: timedelta
    slots: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """The tasks are in the queue: two for each text."""

    texts: int
    tasks: int
    outbox: Path


@dataclass(frozen=True, slots=True)
class Killed:
    """A worker is dead, and this is what it held."""

    victim: Holder
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """A reaper has settled all that the dead worker held."""

    victim: Holder
    held: tuple[Held, ...]
    accusers: tuple[str, ...]
    after: timedelta


@dataclass(frozen=True, slots=True)
class Finished:
    """Every task has ended, or the patience has."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class Drained:
    """The other workers were asked to end; None is the exit code of one that did not in time."""

    exit_codes: dict[str, int | None]


Step = DatabaseReady | WorkersReady | Submitted | Killed | Settled | Finished | Drained
