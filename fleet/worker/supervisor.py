"""Keeps N worker processes alive. It sees a child's death at once, ends its lease and settles its tasks in milliseconds."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
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

HOPELESS = (2, 4)  # exit codes that another start cannot mend: usage, and a schema that does not fit


def run(command: Sequence[str], processes: int, database: Database, settings: Settings, events: Events) -> int:
    """Run `command` so many times, each as one worker, until a signal; return the exit code."""
    supervisor = Supervisor(command, processes, database, settings, events)
    return anyio.run(supervisor.run, backend_options={"use_uvloop": sys.platform != "win32"})


class Supervisor:
    """The parent of the workers. It holds no lease and claims nothing."""

    def __init__(
        self, command: Sequence[str], processes: int, database: Database, settings: Settings, events: Events
    ) -> None:
        self._command = list(command)
        self._processes = processes
        self._database = database
        self._settings = settings
        self._events = events
        self._backoff = BackOff(settings.backoff_base, settings.ttl)
        self._ending = asyncio.Event()
        self._children: set[asyncio.subprocess.Process] = set()
        self._me = uuid7()
        self._code = 0

    async def run(self) -> int:
        """Start the children, restart those that die, and drain them all at the first signal."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._obey_signals, name="signals")
            async with anyio.create_task_group() as children:
                for number in range(self._processes):
                    children.start_soon(self._keep, number, name=f"child {number}")
            group.cancel_scope.cancel()
        return self._code

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                self._end(f"received {signal.Signals(number).name}")

    def _end(self, why: str) -> None:
        """Ask every child to drain; called again, it hurries them."""
        if not self._ending.is_set():
            self._events.emit(DrainStarted(why))
        self._ending.set()
        for child in self._children:
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)

    async def _keep(self, number: int) -> None:
        """Run one child after another; the pause between two grows while they die young."""
        failures = 0
        while not self._ending.is_set():
            began = time.monotonic()
            code, leases = await self._run_child(number)
            await self._settle(leases)
            if self._ending.is_set():
                asked_in_time = code == -signal.SIGTERM and not leases  # it had not come to the point of obeying
                self._code = self._code or (0 if code == 0 or asked_in_time else 1)
                return
            if code in HOPELESS:
                self._code = code
                self._end("a worker cannot start")
                return
            failures = 0 if time.monotonic() - began > self._settings.ttl.total_seconds() else failures + 1
            if failures:
                await back_off(self._backoff, failures - 1, self._ending)

    async def _run_child(self, number: int) -> tuple[int, list[UUID]]:
        """Start a child and return, once it has ended, its exit code and the leases that it had."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                env=os.environ | {SUPERVISOR_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C comes to the parent alone, which asks the children once
            )
            theirs.close()
            self._children.add(child)
            self._events.emit(ChildStarted(number, child.pid))
            if self._ending.is_set():
                child.send_signal(signal.SIGTERM)
            told = bytearray()
            reading = asyncio.ensure_future(_read_all(ours, told))
            code = await child.wait()
            reading.cancel()
            self._children.discard(child)
            self._events.emit(ChildEnded(number, child.pid, code))
            told += _rest(ours)
            return code, [UUID(line) for line in told.decode().split()]
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
