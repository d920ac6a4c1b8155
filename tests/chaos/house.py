"""What is attacked: a server of its own, worker processes, each behind a proxy, and the record of it all."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psycopg

from fleet import embedded
from fleet.config import Settings
from fleet.embedded import Server, temporary
from fleet.postgres import journal, migrate
from fleet.postgres.database import Connection, Database
from fleet.testing.proxy import Proxy
from fleet.testing.sink import Sink
from fleet.verify.history import Recorder
from tests.chaos.plan import TTL_SECONDS
from tests.chaos.program import COMMAND

ROOT = Path(embedded.__file__).parents[1]
SETTINGS = Settings(ttl=timedelta(seconds=TTL_SECONDS))
DATABASE = "fleet_chaos"
SLOTS = 8
PATIENCE_SECONDS = 30.0


@dataclass
class Worker:
    """One place in the fleet: whoever holds it now, and the way by which it reaches the database."""

    name: str
    proxy: Proxy
    environment: dict[str, str]
    log: Path
    popen: "subprocess.Popen[bytes] | None" = None
    busy_until: float = 0.0  # a fault is at work here until this monotonic moment
    stopped: bool = field(default=False)

    def start(self) -> None:
        with self.log.open("ab") as words:
            self.popen = subprocess.Popen(
                COMMAND,
                cwd=ROOT,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.popen is not None:
            self.popen.send_signal(number)

    def kill(self) -> bool:
        """End it by SIGKILL; True where it ended by that signal."""
        if self.popen is None:
            return False
        self.popen.send_signal(signal.SIGKILL)
        self.stopped = False
        return self.popen.wait(PATIENCE_SECONDS) == -signal.SIGKILL

    def stop(self) -> None:
        """Stop it, and return when it stands still."""
        if self.popen is not None:
            self.popen.send_signal(signal.SIGSTOP)
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.stopped = True

    def go_on(self) -> None:
        self.send(signal.SIGCONT)
        self.stopped = False


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

    def replace_the_dead(self) -> None:
        """Start whoever has ended by itself, except where a fault is at work."""
        for worker in self.workers:
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
        crew: list[Worker] = []
        clients = Proxy(url, history=folder)
        with clients:
            try:
                crew.extend(_worker(number, url, folder, sink) for number in range(workers))
                yield House(server, url, folder, crew, clients, Recorder(folder, "nemesis"), sink)
            finally:
                for worker in crew:
                    if worker.lives:
                        worker.kill()
                    worker.proxy.__exit__(None, None, None)


def _worker(number: int, url: str, folder: Path, sink: Sink) -> Worker:
    proxy = Proxy(url, history=folder).__enter__()
    name = f"worker-{number + 1}"
    environment = {
        "FLEET_DATABASE_URL": proxy.url,
        "FLEET_TTL": f"{TTL_SECONDS}s",
        "FLEET_SLOTS": str(SLOTS),
        "FLEET_HISTORY": str(folder),
        "FLEET_SINK": sink.address,
        "WORKER_NAME": name,
    }
    worker = Worker(name, proxy, environment, folder / f"{name}.log")
    worker.start()
    return worker
