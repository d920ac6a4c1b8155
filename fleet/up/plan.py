"""What was asked for, as one value."""

import sys
from dataclasses import dataclass
from pathlib import Path

from fleet.app import Fleet
from fleet.worker.supervisor import Command

_CONNECTIONS_EACH = 12  # a worker's own four, and the pool of its handlers
_CONNECTIONS_OTHERS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One call of `fleet up`; `path` is the app's MODULE:APP."""

    path: str
    app: Fleet
    data: Path
    data_is_demanded: bool  # by an option of this very call
    database_url: str | None
    workers: int
    port: int
    sample: bool
    log: str | None
    log_level: str

    def commands(self, listener: int, inherited: tuple[int, ...]) -> list[Command]:
        """Return what is to be kept alive: the workers, and the API on a socket that listens already."""
        fleet = (sys.executable, "-m", "fleet")
        logs = (f"--log-level={self.log_level}", *([f"--log={self.log}"] if self.log else []))
        workers = [
            Command(name, (*fleet, "worker", "run", self.path, f"--name={name}", "--metrics=", *logs), inherited)
            for name in self.worker_names
        ]
        api = (*fleet, "api", "run", self.path, f"--fd={listener}", *logs)
        return [*workers, Command("api", api, (listener, *inherited))]

    @property
    def connections(self) -> int:
        """How many connections the database must bear: those of the workers, and some for the API and for people."""
        return _CONNECTIONS_OTHERS + self.workers * _CONNECTIONS_EACH

    @property
    def worker_names(self) -> list[str]:
        """What the workers are called."""
        return [f"worker-{number}" for number in range(1, self.workers + 1)]
