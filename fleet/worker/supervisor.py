"""Keeps processes alive: workers, and what stands beside them. A dead worker's tasks are settled within milliseconds."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import anyio
import psycopg
from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.events import ChildEnded, ChildStarted, DrainStarted, Events, LeasesReaped, TasksReclaimed
from fleet.postgres import reap
from fleet.postgres.database import Database
from fleet.retry import BackOff
from fleet.worker.loop import back_off, trouble
from fleet.worker.runner import SUPERVISOR_FD
from fleet.worker.systemd import Systemd

HOPELESS = (2, 4)  # exit codes that another start cannot mend: usage, and a schema that does not fit


class Command(NamedTuple):
    """A process to keep alive: what it is called, its command line, and the open files that it inherits."""

    name: str
    arguments: Sequence[str]
    pass_fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """A running process, and the leases that it has told us of so far, one a line."""

    name: str
    process: asyncio.subprocess.Process
    told: bytearray = field(default_factory=bytearray)

    def leases(self) -> list[UUID]:
        """Return all the leases that it has had."""
        return [UUID(line) for line in self.told.decode().split()]


def run(commands: Sequence[Command], database: Database, settings: Settings, events: Events) -> int:
    """Keep these alive, each one worker, until a signal; return the exit code."""
    supervisor = Supervisor(commands, database, settings, events)
    return anyio.run(supervisor.run, backend_options={"use_uvloop": sys.platform != "win32"})


class Supervisor:
    """The parent of all. It holds no lease and claims nothing."""

    def __init__(self, commands: Sequence[Command], database: Database, settings: Settings, events: Events) -> None:
        self._commands = list(commands)
        self._database = database
        self._settings = settings
        self._events = events
        self._backoff = BackOff(settings.backoff_base, settings.ttl)
        self._ending = asyncio.Event()
        self._children: set[Child] = set()
        self._me = uuid7()
        self._code = 0

    async def run(self) -> int:
        """Start the children, restart those that die, and drain them all at the first signal."""
        systemd = Systemd(os.environ)
        systemd.follow(self._events)
        async with anyio.create_task_group() as group:
            group.start_soon(self._obey_signals, name="signals")
            group.start_soon(systemd.feed, name="watchdog")
            async with anyio.create_task_group() as children:
                for command in self._commands:
                    children.start_soon(self._keep, command, name=command.name)
            group.cancel_scope.cancel()
        return self._code

    def end(self, why: str) -> None:
        """Ask every child to drain; called again, it hurries them.

        By another signal: of two alike, a child that has not got to the first yet would see one.
        """
        number = signal.SIGINT if self._ending.is_set() else signal.SIGTERM
        if not self._ending.is_set():
            self._events.emit(DrainStarted(why))
        self._ending.set()
        for child in self._children:
            if child.process.returncode is None:
                child.process.send_signal(number)

    def holders(self) -> dict[str, int]:
        """Return the children that have registered a lease, and their pids."""
        return {child.name: child.process.pid for child in self._children if child.told}

    async def _obey_signals(self) -> None:
        obeyed = [signal.SIGTERM, signal.SIGINT]
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            obeyed.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*obeyed) as signals:
            async for number in signals:
                self.end(f"received {signal.Signals(number).name}")

    async def _keep(self, command: Command) -> None:
        """Run one child after another; the pause between two grows while they die young."""
        failures = 0
        while not self._ending.is_set():
            began = time.monotonic()
            code, leases = await self._run_child(command)
            await self._settle(leases)
            if self._ending.is_set():
                asked_in_time = code == -signal.SIGTERM and not leases  # it had not come to the point of obeying
                self._code = self._code or (0 if code == 0 or asked_in_time else 1)
                return
            if code in HOPELESS:
                self._code = code
                self.end(f"{command.name} cannot start")
                return
            failures = 0 if time.monotonic() - began > self._settings.ttl.total_seconds() else failures + 1
            if failures:
                await back_off(self._backoff, failures - 1, self._ending)

    async def _run_child(self, command: Command) -> tuple[int, list[UUID]]:
        """Start a child and return, once it has ended, its exit code and the leases that it had."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            process = await asyncio.create_subprocess_exec(
                *command.arguments,
                env=os.environ | {SUPERVISOR_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(), *command.pass_fds),
                start_new_session=True,  # Ctrl-C comes to the parent alone, which asks the children once
            )
            theirs.close()
            child = Child(command.name, process)
            self._children.add(child)
            self._events.emit(ChildStarted(command.name, process.pid))
            if self._ending.is_set():
                process.send_signal(signal.SIGTERM)
            reading = asyncio.ensure_future(_read_all(ours, child.told))
            code = await process.wait()
            reading.cancel()
            self._children.discard(child)
            self._events.emit(ChildEnded(command.name, process.pid, code))
            child.told.extend(_rest(ours))
            return code, child.leases()
        finally:
            theirs.close()
            ours.close()

    async def _settle(self, leases: Sequence[UUID]) -> None:
        """End what the dead child held. Where the database does not let us, the reapers will, a TTL later."""
        if not leases:
            return
        try:
            async with await self._database.connect("supervisor") as connection:
                ended = await reap.end(connection, self._me, leases)
                if ended:
                    self._events.emit(LeasesReaped(tuple(ended)))
                settings = self._settings
                sweeper = reap.Sweeper(self._me, settings.backoff_base, settings.backoff_cap)
                done = await reap.sweep(connection, sweeper, leases)
                if done:
                    self._events.emit(TasksReclaimed(done.requeued, done.failed, done.cancelled))
        except psycopg.Error as error:
            self._events.emit(trouble("settle a child", error))


async def _read_all(channel: socket.socket, into: bytearray) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(channel, 4096):
        into += data


def _rest(channel: socket.socket) -> bytes:
    """Return what the child had sent and nobody has read yet."""
    try:
        return channel.recv(65536)
    except OSError:
        return b""
