"""What every driver of replicas can do with one of them; and what a replica is told when it starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Program:
    """What all replicas of a crew run: an app, `module:app`, on a database, with an environment."""

    app: str
    database_url: str = field(repr=False)
    environment: Mapping[str, str]
    history: Path | None = None


class ReplicaEnded(RuntimeError):
    """A replica ended where it should have gone on; the message has the end of its log."""


class Replica(Protocol):
    """One worker process, wherever it runs. Its `name` is the name of its worker, and nobody else's."""

    name: str

    @property
    def pid(self) -> int:
        """Its process id as the machine of the test counts."""

    @property
    def ended(self) -> int | None:
        """The exit code, a signal's as minus its number; None while it runs."""

    def start(self) -> None:
        """Start it, or start it again; returns at once."""

    def signal(self, number: Signals) -> None:
        """Send a signal to it."""

    def pause(self) -> None:
        """Stop it as a whole; returns when it stands still."""

    def resume(self) -> None:
        """Let it go on."""

    def partition(self) -> None:
        """Cut it off from the database, both ways; no connection is closed by that."""

    def heal(self) -> None:
        """Let it reach the database again."""

    def wait(self, seconds: float) -> int:
        """Return the exit code once it has ended. Raises TimeoutError."""

    def log(self) -> str:
        """What it has written so far, since its first start."""

    def close(self) -> None:
        """Take it away, running or not."""
