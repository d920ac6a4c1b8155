"""The life of a fleet on one machine: its start, what is looked after meanwhile, and its end in order."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
import anyio.to_thread
from alembic.util import CommandError

from fleet import logs
from fleet.cli.api import listen
from fleet.cli.failures import ExitCode, Refused
from fleet.cli.session import open_app
from fleet.config import database_url
from fleet.embedded import EmbeddedError, Server
from fleet.errors import SchemaMismatch
from fleet.events import ChildStarted, DrainStarted, Event, Events, ServerRestarted
from fleet.postgres import migrate
from fleet.postgres.database import Database
from fleet.up.house import held, served
from fleet.up.narrator import Narrator
from fleet.up.plan import Plan
from fleet.up.sample import analyze_texts
from fleet.verify.history import record_where_asked
from fleet.worker.loop import pause
from fleet.worker.supervisor import Supervisor

HOST = "127.0.0.1"
URL, URL_FILE = "FLEET_DATABASE_URL", "FLEET_DATABASE_URL_FILE"
_LOOK_SECONDS = 0.05  # how often to ask whether all are ready
_TEND_SECONDS = 1.0  # how often to ask whether the database lives
_ENDING = [signal.SIGINT, signal.SIGTERM] + ([signal.SIGHUP] if sys.platform != "win32" else [])


def run(plan: Plan) -> int:
    """Run it all until a signal; return the exit code. Raises Refused."""
    if os.environ.get(URL_FILE) == str(plan.data / "url"):
        del os.environ[URL_FILE]  # a shell has kept the address of this very server
    url = database_url(os.environ, plan.database_url, plan.app.database_url)
    if url is not None and plan.data_is_demanded:
        raise Refused(
            f"two databases are named: --data is for one that is started here; leave it out, or leave out --database-url, "
            f"{URL}, {URL_FILE} and PG* variables",
            ExitCode.USAGE,
        )
    logs.configure(plan.log, plan.log_level)
    with _signals():
        if url is not None:
            with listen(HOST, plan.port) as listener:
                return _Life(plan, Narrator(plan, _address(listener)), listener, url, None).run()
        with held(plan.data) as sign, listen(HOST, plan.port) as listener:
            narrator = Narrator(plan, _address(listener))
            sign(f"pid {os.getpid()}, {_address(listener)}")
            narrator.tell("starting PostgreSQL", lines=[f"Starting PostgreSQL in {plan.data} …"], data=str(plan.data))
            with served(plan.data, connections=plan.connections) as server:
                code = _Life(plan, narrator, listener, server.url, server).run()
            narrator.tell("ended", lines=[f"Everything has ended. The data stays in {plan.data}"], data=str(plan.data))
            return code


class _Life:
    """One fleet, on a port and a database that are there."""

    def __init__(
        self, plan: Plan, narrator: Narrator, listener: socket.socket, url: str, server: Server | None
    ) -> None:
        self._plan = plan
        self._listener = listener
        self._url = url  # empty: PG* variables name the database
        self._server = server
        self._narrator = narrator
        self._events = Events()
        record_where_asked(self._events, os.environ, f"supervisor {os.getpid()}")
        self._names: set[str] = set()  # of the children that have been started once
        self._failure: EmbeddedError | None = None

    def run(self) -> int:
        """Migrate, run until the end, and let no signal disturb what comes after it."""
        database = open_app(self._plan.app, self._url)
        if self._url:
            os.environ[URL] = self._url  # for the children; their arguments could be read by everybody
        logs.subscribe(self._events)
        self._events.subscribe(self._narrate)
        self._migrate(database)
        try:
            code = anyio.run(self._live, database, backend_options={"use_uvloop": sys.platform != "win32"})
        finally:
            for number in _ENDING:
                signal.signal(number, signal.SIG_IGN)
        if self._failure:
            raise self._failure
        return code

    def _migrate(self, database: Database) -> None:
        """Bring the schema up to date, and say so where it was not."""
        try:
            behind = migrate.check(database) < (migrate.head() or "")
        except SchemaMismatch:
            behind = True
        if behind:
            with suppress(CommandError):  # a revision that only a later version knows: the check says so
                migrate.upgrade(database)
            self._narrator.tell("the schema was brought up to date", revision=migrate.check(database))

    async def _live(self, database: Database) -> int:
        inherited = (self._server.user,) if self._server else ()
        commands = self._plan.commands(self._listener.fileno(), inherited)
        supervisor = Supervisor(commands, database, self._plan.app.settings, self._events)
        async with anyio.create_task_group() as group:
            group.start_soon(self._welcome, supervisor, database, name="welcome")
            if self._server:
                group.start_soon(self._tend, supervisor, self._server, name="database")
            code = await supervisor.run()
            group.cancel_scope.cancel()
        return code

    async def _welcome(self, supervisor: Supervisor, database: Database) -> None:
        """Once everything is ready say so, and show what can be done with it."""
        port, names = self._listener.getsockname()[1], self._plan.worker_names
        holders = supervisor.holders()
        while not (holders.keys() >= set(names) and await _is_ready(port)):
            await pause(_LOOK_SECONDS)
            holders = supervisor.holders()
        workers = {name: holders[name] for name in names}
        data = self._plan.data if self._server else None
        self._narrator.welcome(workers, data, database.address)
        if self._plan.sample:
            await analyze_texts(self._narrator)
        self._narrator.advise(workers, data)

    async def _tend(self, supervisor: Supervisor, server: Server) -> None:
        """Start the database again when it has ended by itself; where that cannot be done, end everything."""
        try:
            while True:
                await pause(_TEND_SECONDS)
                found = await anyio.to_thread.run_sync(server.start)
                if found.pid != server.pid:
                    self._events.emit(ServerRestarted(found.pid))
                server = found
        except EmbeddedError as error:
            self._failure = error
            supervisor.end("the database cannot be started again")

    def _narrate(self, event: Event) -> None:
        match event:
            case ChildStarted(name, pid):
                if name in self._names:
                    self._narrator.tell(f"{name} runs again: pid {pid}")
                self._names.add(name)
            case DrainStarted():
                self._listener.close()  # only the API's own end of it is left: nobody is kept waiting in vain
                patience = self._plan.app.settings.drain_timeout.total_seconds()
                line = f"Draining: running tasks get {patience:g} s to finish. Another Ctrl-C waits for none of them."
                self._narrator.tell("waiting for running tasks", lines=["", line], seconds=patience)


async def _is_ready(port: int) -> bool:
    """Ask the API whether it can serve."""
    answer = b""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(f"GET /readyz HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
        try:
            answer = await reader.readline()
        finally:
            writer.close()
    return answer.startswith(b"HTTP/1.1 200 ")


def _address(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}"


@contextmanager
def _signals() -> Iterator[None]:
    """Let each signal that ends a fleet interrupt its start, like Ctrl-C, unless it is ignored, as under nohup."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
