"""Where scenarios play: one PostgreSQL, an empty database for each side, programs that are told what to do, workers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from fleet.bench.tasks import PAD
from fleet.config import Settings
from fleet.embedded import temporary
from fleet.errors import ConfigurationError, DatabaseUnreachable, first_line
from fleet.postgres import migrate, queue
from fleet.postgres.database import AsyncConnection, Database

SERVER = {"shared_buffers": "1GB", "max_wal_size": "4GB", "max_connections": "600"}
_VERSION_MIN = 18_00_00
_PATIENCE_SECONDS = 600
_POLL_SECONDS = 0.02
NOBODY = UUID(int=0)
LAST = "SELECT id FROM fleet.task ORDER BY id DESC LIMIT 1"
_OPEN = "SELECT count(*) FROM fleet.task WHERE id > %s AND finished_at IS NULL"
_ENDED = """
SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float8, bool_and(state = 'SUCCEEDED')
FROM fleet.task
WHERE id > %s
"""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Stage:
    """One server, and a place to say how things go."""

    server_url: str
    say: Callable[[str], None]

    @contextmanager
    def database(self, *, migrated: bool = True, name: str = "fleet_bench") -> Iterator[str]:
        """Make an empty database, with fleet's tables or without; drop it afterwards. Yields its URL."""
        drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"
        self._order(drop, f"CREATE DATABASE {name}", "CHECKPOINT")
        try:
            url = make_conninfo(self.server_url, dbname=name)
            if migrated:
                migrate.upgrade(Database(url, Settings()))
            yield url
        finally:
            self._order(drop)

    def _order(self, *statements: str) -> None:
        with psycopg.connect(self.server_url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def play(self, program: str | Path, python: str | Path = sys.executable, **orders: Any) -> dict[str, float]:
        """Run a program (a module of ours, or a file) with its orders as JSON, and return the figures that it prints."""
        named = ["-m", program] if isinstance(program, str) else [str(program)]
        done = subprocess.run(  # noqa: S603 - our own programs
            [python, *named, json.dumps(orders)], capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stderr[-4000:]}")
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return figures

    @contextmanager
    def workers(
        self, url: str, processes: int = 1, *, work_ms: float = 1, queues: Sequence[str] = (), **settings: Any
    ) -> Iterator["Crew"]:
        """Run worker processes as a user does, and yield them when each holds its lease. They are killed afterwards.

        `settings` are those of fleet: `slots=256`, `ttl="3s"`.
        """
        given = {f"FLEET_{name.upper()}": str(value) for name, value in settings.items()}
        environment = os.environ | given | {"FLEET_BENCH_WORK_MS": str(work_ms), "FLEET_DATABASE_URL": url}
        with ExitStack() as stack:
            crew = Crew(url, environment, stack)
            for _ in range(processes):
                crew.start(queues)
            crew.wait_until(lambda: crew.one("SELECT count(*) FROM fleet.lease WHERE state = 'LIVE'") >= processes)
            yield crew


class Crew:
    """Worker processes on one database, and a connection to look at it."""

    def __init__(self, url: str, environment: Mapping[str, str], stack: ExitStack) -> None:
        self.connection: Connection = stack.enter_context(psycopg.connect(url, autocommit=True))
        self.processes: list[subprocess.Popen[bytes]] = []
        self._database = Database(url, Settings())
        self._environment = environment
        self._stack = stack

    def start(self, queues: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
        """Start one more worker, for all queues of its tasks or for these."""
        command = [sys.executable, "-m", "fleet", "worker", "run", "fleet.bench.tasks:app", "--log-level", "error"]
        command += [f"--queue={name}" for name in queues]
        process = subprocess.Popen(command, env=self._environment)  # noqa: S603 - ourselves
        self._stack.callback(_end, process)
        self.processes.append(process)
        return process

    def one(self, question: str, *values: object) -> Any:
        """Ask for one value."""
        row = self.connection.execute(question, values).fetchone()
        return row[0] if row else None

    def wait_until(self, holds: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> None:
        """Look again and again. Raises RuntimeError when a worker has ended by itself, or nothing came of it."""
        deadline = time.monotonic() + seconds
        while not holds():
            ended = [process.returncode for process in self.processes if process.poll() not in (None, -signal.SIGKILL)]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"waited in vain; workers that ended by themselves: {ended or 'none'}")
            time.sleep(_POLL_SECONDS)

    def pause(self, queues: Sequence[str] = ("default",)) -> None:
        """Let nobody claim from these queues."""
        self._order(queue.pause, queues)

    def resume(self, queues: Sequence[str] = ("default",)) -> None:
        """Let them be claimed from again."""
        self._order(queue.resume, queues)

    def _order(self, verb: Callable[[AsyncConnection, str, str], Awaitable[bool]], queues: Sequence[str]) -> None:
        async def order() -> None:
            async with await self._database.connect("bench") as connection, connection.transaction():
                for name in queues:
                    await verb(connection, name, "bench")

        asyncio.run(order())

    def drained(self) -> dict[str, float]:
        """Wait until every task has ended; return tasks per second of the database's clock, first claim to last end."""
        count, seconds = self.ended()
        return {"tasks_per_second": count / seconds}

    def ended(self, after: UUID = NOBODY) -> tuple[int, float]:
        """Wait until every task with a later id has ended; return how many there were, and the seconds it took them."""
        last = self.one(LAST)
        self.wait_until(lambda: self.one("SELECT finished_at IS NOT NULL FROM fleet.task WHERE id = %s", last))
        self.wait_until(lambda: self.one(_OPEN, after) == 0)
        count, seconds, well = self.connection.execute(_ENDED, (after,)).fetchone() or (0, 0.0, False)
        if not well:
            raise RuntimeError(f"of {count} tasks not all have ended well")
        return count, seconds

    def worker_cpu_seconds(self) -> float:
        """Processor time that the workers have taken so far."""
        return sum(_cpu(psutil.Process(process.pid)) for process in self.processes if process.poll() is None)


def server_cpu_seconds(connection: Connection) -> float:
    """Return the processor time of the whole server so far, with its ended processes; it must run on this machine."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    backend = psutil.Process(row[0] if row else 0)
    postmaster = backend.parent() or backend
    ended = postmaster.cpu_times()
    return _cpu(postmaster) + ended.children_user + ended.children_system + sum(map(_cpu, postmaster.children()))


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has just ended
        return 0.0
    return times.user + times.system


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


@contextmanager
def opened(server_url: str | None, say: Callable[[str], None]) -> Iterator[Stage]:
    """Use the server that was named, or run one for the time being. Raises DatabaseUnreachable, ConfigurationError."""
    if server_url:
        _check(server_url)
        yield Stage(server_url, say)
    else:
        with temporary(SERVER) as server:
            yield Stage(server.url, say)


def _check(server_url: str) -> None:
    try:
        with psycopg.connect(server_url) as connection:
            version = connection.info.server_version
    except psycopg.OperationalError as error:
        reason = first_line(error)
        raise DatabaseUnreachable(
            f"the server for the benchmarks cannot be reached: {reason}. Check --server-url, FLEET_BENCH_SERVER_URL"
        ) from None
    if version < _VERSION_MIN:
        raise ConfigurationError(
            "the benchmarks fill tables by uuidv7(), which is in PostgreSQL 18; name such a server"
        )


def fill(
    connection: Connection,
    tasks: int,
    *,
    queues: Sequence[str] = ("default",),
    name: str = "work",
    due_in: str = "0 s",
) -> None:
    """Put tasks into queues, in turn, in one statement, and leave the table vacuumed, as after a while of operation.

    It needs PostgreSQL 18, which makes ids that rise with time.
    """
    connection.execute(
        """
        INSERT INTO fleet.task (id, queue, name, args, max_attempts, max_losses, run_at)
        SELECT uuidv7(), (%s::text[])[1 + i %% %s], %s, jsonb_build_object('i', i, 'pad', %s::text), 5, 3,
          clock_timestamp() + %s::interval
        FROM generate_series(1, %s) AS i
        """,
        (list(queues), len(queues), name, PAD, due_in, tasks),
    )
    settle_down(connection, "fleet.task")


def settle_down(connection: Connection, table: str) -> None:
    """Let vacuum, analyze and a checkpoint happen now, and not in the middle of a measurement."""
    connection.execute(f"VACUUM (ANALYZE) {table}")
    connection.execute("CHECKPOINT")
