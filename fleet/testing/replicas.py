"""Replicas of a user's app: started for real, and killed, paused, cut off and started again at will.

    with replicas("shop:app", 2, database_url) as crew:
        crew.kill(0)

All calls block, also those that wait: from an async test they hold up its event loop, and nothing else.
"""

import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import Signals
from typing import Any, Literal, Self
from uuid import UUID, uuid4

from fleet.config import Settings
from fleet.postgres import inspect
from fleet.postgres.database import Database
from fleet.testing.containers import container_driver
from fleet.testing.driver import Program, Replica, ReplicaEnded
from fleet.testing.eyes import Eyes
from fleet.testing.processes import ProcessReplica
from fleet.testing.waiting import PATIENCE_SECONDS, until
from fleet.verify.history import VARIABLE as HISTORY
from fleet.verify.history import Recorder

TTL_SECONDS = 2.0
_LOG_SHOWN = 4000

Driver = Literal["process", "container"]


class Crew:
    """The replicas by their number, from 0. What is done to them is in the history, if there is one."""

    def __init__(self, replicas: list[Replica], eyes: Eyes, history: Path | None) -> None:
        self._replicas = replicas
        self._eyes = eyes
        self._recorder = Recorder(history, "nemesis") if history is not None else None

    def __getitem__(self, index: int) -> Replica:
        return self._replicas[index]

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def kill(self, index: int, signal: Signals = signal.SIGKILL) -> int | None:
        """Send a signal. Return the exit code once it has ended; with another signal than SIGKILL, None at once."""
        replica = self._do("kill" if signal == Signals.SIGKILL else signal.name, index)
        replica.signal(signal)
        return replica.wait(PATIENCE_SECONDS) if signal == Signals.SIGKILL else None

    def pause(self, index: int) -> None:
        """Stop a replica as a whole, heartbeat and all; returns when it stands still."""
        self._do("pause", index).pause()

    def resume(self, index: int) -> None:
        """Let a paused replica go on."""
        self._do("resume", index).resume()

    def partition(self, index: int) -> None:
        """Cut a replica off from the database: nothing crosses either way, and no connection is closed by that."""
        self._do("partition", index).partition()

    def heal(self, index: int) -> None:
        """Let it reach the database again."""
        self._do("heal", index).heal()

    def drain(self, index: int, seconds: float = PATIENCE_SECONDS) -> int:
        """Ask by SIGTERM to drain, as a deployment does; return the exit code when it has ended."""
        replica = self._do("drain", index)
        replica.signal(signal.SIGTERM)
        return replica.wait(seconds)

    def restart(self, index: int) -> UUID:
        """Start a replica that has ended, or is killed now, again; return its lease when it has one."""
        replica = self._do("restart", index)
        known = self.leases(index)
        if replica.ended is None:
            replica.signal(signal.SIGKILL)
            replica.wait(PATIENCE_SECONDS)
        replica.start()
        return self.lease(index, but=known)

    def wait(self, index: int, seconds: float = PATIENCE_SECONDS) -> int:
        """Return the exit code of a replica once it has ended by itself; a signal's is minus its number."""
        return self[index].wait(seconds)

    def lease(self, index: int, *, but: Collection[UUID] = (), seconds: float = PATIENCE_SECONDS) -> UUID:
        """Return the youngest lease of a replica as soon as it has one (`but`: one that is not among these).

        Raises ReplicaEnded where it has ended instead, with the end of its log.
        """
        replica = self[index]

        def probe() -> UUID | None:
            new = [lease for lease in self.leases(index) if lease not in but]
            if not new and replica.ended is not None:
                words = replica.log()[-_LOG_SHOWN:]
                raise ReplicaEnded(
                    f"{replica.name} ended with {replica.ended} before it had a lease; its log:\n{words}"
                )
            return new[0] if new else None

        return until(probe, f"a lease of {replica.name}", seconds)

    def leases(self, index: int) -> list[UUID]:
        """Return all leases that a replica has had, the youngest first."""
        question = inspect.workers(every=True, name=self[index].name)
        return [row["id"] for row in self._eyes.ask(question)]

    def find(self, pid: int) -> int:
        """Return the number of the replica that is this process. Raises LookupError."""
        for index, replica in enumerate(self):
            if replica.pid == pid:
                return index
        raise LookupError(f"no replica of this crew is process {pid}")

    def holder(self, lease: UUID) -> int:
        """Return the number of the replica that has, or had, this lease. Raises LookupError."""
        for index in range(len(self)):
            if lease in self.leases(index):
                return index
        raise LookupError(f"no replica of this crew has had the lease {lease}")

    def log(self, index: int) -> str:
        """Return what a replica has written so far."""
        return self[index].log()

    def _do(self, fault: str, index: int) -> Replica:
        replica = self[index]
        if self._recorder is not None:
            self._recorder.write("fault", fault=fault, target=replica.name, pid=replica.pid)
        return replica


@contextmanager
def replicas(
    app: str,
    count: int,
    database_url: str,
    *,
    driver: Driver = "process",
    environment: Mapping[str, str] | None = None,
    ttl_seconds: float = TTL_SECONDS,
) -> Iterator[Crew]:
    """Run so many replicas of `app`, given as `module:app`, and return once each has its lease; then take all away.

    The database must have the schema. `environment` is given to each replica; FLEET_SLOTS, FLEET_DRAIN_TIMEOUT and so on
    there go before the app's own settings, as always. With FLEET_HISTORY in it, all that happens is recorded in that folder.
    """
    given = {"FLEET_TTL": f"{ttl_seconds:g}s"} | dict(environment or {})
    history = Path(given[HISTORY]) if HISTORY in given else None
    if history is not None:
        history.mkdir(parents=True, exist_ok=True)
    program = Program(app, database_url, given, history)
    token = uuid4().hex[:6]
    with ExitStack() as stack:
        make = stack.enter_context(_driver(driver))
        crew: list[Replica] = []
        for index in range(count):
            replica = make(f"replica-{index}-{token}", program)
            stack.callback(replica.close)
            crew.append(replica)
        for replica in crew:
            replica.start()
        eyes = Eyes(Database(database_url, Settings()))
        stack.callback(eyes.close)
        together = Crew(crew, eyes, history)
        for index in range(count):
            together.lease(index)
        yield together


class Replicas:
    """Runs crews on one database until its block ends: `crew = factory("shop:app", 2)`, with the options of `replicas`."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self._stack = ExitStack()

    def __call__(self, app: str, count: int = 2, **options: Any) -> Crew:
        return self._stack.enter_context(replicas(app, count, self._database_url, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


@contextmanager
def _process_driver() -> Iterator[Callable[[str, Program], Replica]]:
    with tempfile.TemporaryDirectory(prefix="fleet-replicas-") as folder:
        yield lambda name, program: ProcessReplica(name, program, Path(folder))


def _driver(driver: Driver) -> Any:
    return _process_driver() if driver == "process" else container_driver()
