"""Real worker processes: started, found by their lease, killed, and always cleaned up."""

import asyncio
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psutil

from fleet import embedded
from fleet.postgres.database import AsyncConnection
from tests.processes.program import COMMAND
from tests.support import PATIENCE_SECONDS, eventually

ROOT = Path(embedded.__file__).parents[1]


class Fact(NamedTuple):
    """One line of the sink: what a handler did to the world outside."""

    kind: str
    task_id: UUID
    attempt: int
    pid: int


class Sink:
    """What the world outside has seen, in its own order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def facts(self) -> list[Fact]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="ascii").splitlines()
        return [Fact(kind, UUID(task), int(attempt), int(pid)) for kind, task, attempt, pid in map(str.split, lines)]

    def attempts(self, kind: str, task_id: UUID) -> list[int]:
        """The attempts of a task in which this was seen."""
        return [fact.attempt for fact in self.facts() if fact.kind == kind and fact.task_id == task_id]

    def by_task(self, kind: str) -> dict[UUID, list[int]]:
        found: dict[UUID, list[int]] = defaultdict(list)
        for fact in self.facts():
            if fact.kind == kind:
                found[fact.task_id].append(fact.attempt)
        return found


class Process:
    """One process of this test, in a session of its own."""

    def __init__(self, popen: "subprocess.Popen[bytes]", name: str, log: Path) -> None:
        self.popen = popen
        self.pid = popen.pid
        self.name = name
        self.log = log

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def stop(self) -> None:
        """Stop it as a whole, and return when it stands still."""
        self.popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """End it by SIGKILL and confirm that it ended by that signal: no code of its own ran."""
        self.popen.send_signal(signal.SIGKILL)
        assert self.popen.wait(PATIENCE_SECONDS) == -signal.SIGKILL

    async def ended(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Return its exit code when it has ended by itself."""

        async def probe() -> bool:
            return self.popen.poll() is not None

        try:
            await eventually(probe, seconds)
        except AssertionError:
            raise AssertionError(f"{self.name} (pid {self.pid}) did not end; its log:\n{self.words()}") from None
        return int(self.popen.returncode)

    def words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


class Crew:
    """Starts worker processes on one database and takes them all away in the end."""

    def __init__(self, url: str, folder: Path, connection: AsyncConnection, stage: Path) -> None:
        self.sink = Sink(folder / "sink")
        self.processes: list[Process] = []
        self._url = url
        self._folder = folder
        self._connection = connection
        self._stage = stage
        self._token = uuid4().hex
        self._count = 0

    def start(
        self,
        *arguments: str,
        name: str | None = None,
        slots: int = 1,
        ttl: str = "2s",
        queues: Sequence[str] = (),
        output: int | None = None,
        **settings: str,
    ) -> Process:
        """Start one and return at once; `settings` are FLEET_… variables."""
        self._count += 1
        name = name or f"worker-{self._count}"
        log = self._folder / f"{self._count}.log"
        environment = {
            "FLEET_DATABASE_URL": self._url, "FLEET_TTL": ttl, "FLEET_SLOTS": str(slots), "QUEUES": ",".join(queues),
            "STAGE": str(self._stage), "SINK": str(self.sink.path), "CREW": self._token, "WORKER_NAME": name,
        } | {f"FLEET_{key.upper()}": value for key, value in settings.items()}  # fmt: skip
        with log.open("wb") as words:
            popen = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=ROOT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=words if output is None else output,
                stderr=words if output is None else output,
                start_new_session=True,
            )
        process = Process(popen, name, log)
        self.processes.append(process)
        return process

    async def worker(self, **options: Any) -> Process:
        """Start one worker and return when it has its lease."""
        process = self.start(**options)
        await self.lease_of(process)
        return process

    async def workers(self, count: int, **options: Any) -> list[Process]:
        return list(await asyncio.gather(*[self.worker(**options) for _ in range(count)]))

    async def lease_of(self, process: Process, *, but: UUID | None = None) -> UUID:
        """Return the id of the youngest lease of this process, as soon as it has one (`but`: another one)."""

        async def probe() -> UUID | None:
            if process.popen.poll() is not None:
                raise RuntimeError(f"{process.name} ended with {process.popen.returncode}:\n{process.words()}")
            leases = await leases_of(self._connection, process.pid)
            return leases[-1] if leases and leases[-1] != but else None

        found = await eventually(probe)
        assert found is not None
        return found

    def start_looking(self, connection: AsyncConnection) -> "Crew":
        """Look through another connection from now on."""
        self._connection = connection
        return self

    def clean_up(self) -> None:
        """Kill what still lives of this crew, grandchildren too: everything that carries its token."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get("CREW") == self._token:
                    process.kill()
        for each in self.processes:
            each.popen.wait(PATIENCE_SECONDS)


async def leases_of(connection: AsyncConnection, pid: int) -> list[UUID]:
    """The leases that a process has had, the youngest last."""
    cursor = await connection.execute("SELECT id FROM fleet.lease WHERE pid = %s ORDER BY id", (pid,))
    return [row[0] for row in await cursor.fetchall()]


async def value(connection: AsyncConnection, question: str, *parameters: object) -> Any:
    """The answer to a question of one row and one column."""
    found = await (await connection.execute(question, parameters or None)).fetchone()
    assert found is not None
    return found[0]


async def until(
    connection: AsyncConnection,
    question: str,
    *parameters: object,
    is_: Callable[[Any], bool] = bool,
    seconds: float = 30,
) -> Any:
    """Ask until the one value answered is as wanted; return it."""

    async def probe() -> tuple[Any] | None:
        answer = await value(connection, question, *parameters)
        return (answer,) if is_(answer) else None

    found = await eventually(probe, seconds)
    assert found is not None
    return found[0]


async def terminal(connection: AsyncConnection, task_id: UUID, seconds: float = PATIENCE_SECONDS) -> str:
    """Return the state of a task as soon as it is terminal."""
    return str(
        await until(
            connection,
            "SELECT state FROM fleet.task WHERE id = %s",
            task_id,
            is_=lambda state: state not in ("QUEUED", "RUNNING"),
            seconds=seconds,
        )
    )


async def waits_for_lock(connection: AsyncConnection, role: str) -> int:
    """Return the backend of a worker's connection (`claim`, `settle`, …) as soon as it waits for somebody's lock."""
    return int(
        await until(
            connection,
            "SELECT coalesce((SELECT max(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = %s AND wait_event_type = 'Lock'), 0)",
            f"fleet {role}",
        )
    )
