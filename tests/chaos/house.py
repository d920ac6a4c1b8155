"""What is attacked: a server of its own, worker processes, each behind a proxy, and the record of it all."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psycopg

from fleet.config import Settings
from fleet.embedded import Server, temporary
from fleet.postgres import journal, migrate
from fleet.postgres.database import Connection, Database
from fleet.testing.driver import Program
from fleet.testing.processes import ProcessReplica
from fleet.testing.proxy import Proxy
from fleet.testing.sink import Sink
from fleet.verify.history import Recorder
from tests.chaos.plan import TTL_SECONDS
from tests.chaos.program import APP

SETTINGS = Settings(ttl=timedelta(seconds=TTL_SECONDS))
DATABASE = "fleet_chaos"
SLOTS = 8


class Worker(ProcessReplica):
    """One place in the fleet: whoever holds it now, and the way by which it reaches the database."""

    busy_until = 0.0  # a fault is at work here until this monotonic moment

    @property
    def lives(self) -> bool:
        return self.ended is None

    def kill(self) -> bool:
        """End it by SIGKILL; True where it ended by that signal."""
        self.signal(signal.SIGKILL)
        return self.wait() == -signal.SIGKILL


@dataclass
class House:
    server: Server
    url: str
    folder: Path
    workers: list[Worker]
    clients: Proxy
    nemesis: Recorder
    sink: Sink

    def connect(self) -> Connection:
        return Connection.connect(self.url, autocommit=True, connect_timeout=5)

    def hold_a_snapshot(self) -> None:
        """From here on no dead row may be removed: a prepared transaction survives even the crashes of the server."""
        with psycopg.connect(self.url) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS chaos_snapshot (at timestamptz)")
            connection.commit()
            connection.execute("INSERT INTO chaos_snapshot VALUES (clock_timestamp())")
            connection.execute("PREPARE TRANSACTION 'chaos'")

    def let_the_snapshot_go(self) -> float:
        """Return for how many seconds it was held."""
        with self.connect() as connection:
            found = connection.execute(
                "SELECT extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts"
            ).fetchone()
            assert found is not None, "the snapshot was not held"
            connection.execute("ROLLBACK PREPARED 'chaos'")
        return float(found[0])

    def free(self) -> list[Worker]:
        """Whoever lives and is let alone by all faults."""
        return [worker for worker in self.workers if worker.lives and worker.busy_until < time.monotonic()]

    def replace_the_dead(self, workers: Sequence[Worker]) -> None:
        """Start those of them that have ended by themselves, except where a fault is at work."""
        for worker in workers:
            if not worker.lives and worker.busy_until < time.monotonic():
                worker.start()


@contextmanager
def house(folder: Path, workers: int) -> Iterator[House]:
    """Lend a whole fleet with everything around it. Nothing of it is left afterwards, but for the folder."""
    settings = {"max_connections": "200", "shared_buffers": "256MB", "max_prepared_transactions": "4"}
    with temporary(settings) as server, Sink(history=folder) as sink:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        url = server.url_of(DATABASE)
        migrate.upgrade(Database(url, SETTINGS))
        with Connection.connect(url, autocommit=True) as connection:
            journal.install_sync(connection)
        with Proxy(url, history=folder) as clients, ExitStack() as stack:
            program = Program(APP, url, environment(folder, sink), folder)
            crew = [Worker(f"worker-{number + 1}", program, folder) for number in range(workers)]
            for worker in crew:
                stack.callback(worker.close)
                worker.start()
            yield House(server, url, folder, crew, clients, Recorder(folder, "nemesis"), sink)


def environment(folder: Path, sink: Sink) -> dict[str, str]:
    return {"FLEET_TTL": f"{TTL_SECONDS}s", "FLEET_SLOTS": str(SLOTS), "FLEET_HISTORY": str(folder)} | sink.environment
