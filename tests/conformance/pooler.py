"""PgBouncer in transaction mode before a server."""

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.conformance.programs import program
from tests.conformance.room import PATIENCE_SECONDS, Room, free_ports

SIZE = 20  # connections to the server for each database and user


class Pooler:
    """A PgBouncer before `server_url`: it lends its few connections for one transaction each. `settings`: more of them."""

    def __init__(self, room: Room, server_url: str, name: str = "pgbouncer", settings: Mapping[str, str] = {}) -> None:
        self._room = room
        self._program = program("pgbouncer", "pgbouncer")
        self._server = urlsplit(server_url)
        self._name = name
        self.port = free_ports(1)[0]
        self._file = self._configure(settings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_of(self._server.path.removeprefix("/"))

    def url_of(self, database: str) -> str:
        """The URL of a database of the server, through the pooler."""
        server = self._server
        return urlunsplit(
            server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:{self.port}", path=f"/{database}")
        )

    def start(self) -> "Pooler":
        """Start it, and return when it answers."""
        self._process = self._room.start(self._program, self._file, name=self._name)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.ask("SHOW VERSION")
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{error}\n{self._room.words(self._name)}") from error
                time.sleep(0.05)
            else:
                return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it at once: SIGTERM drops every connection, as SIGKILL does."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_SECONDS)

    def ask(self, command: str) -> list[dict[str, object]]:
        """Give its console a command, and return the rows of the answer."""
        with psycopg.connect(
            self.url_of("pgbouncer"), autocommit=True, prepare_threshold=None, connect_timeout=2
        ) as console:
            cursor = psycopg.ClientCursor(console)
            cursor.execute(command.encode())
            if cursor.description is None:
                return []
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _configure(self, settings: Mapping[str, str]) -> Path:
        server, folder = self._server, self._room.folder(self._name)
        users = folder / "users"
        users.write_text(f'"{server.username}" "{server.password}"\n', encoding="ascii")
        file = folder / "pgbouncer.ini"
        more = "\n".join(f"{key} = {value}" for key, value in settings.items())
        file.write_text(
            f"""[databases]
* = host={server.hostname} port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
auth_user = {server.username}
admin_users = {server.username}
pool_mode = transaction
default_pool_size = {SIZE}
max_client_conn = 1000
ignore_startup_parameters = options, extra_float_digits
server_login_retry = 1
{more}
""",
            encoding="ascii",
        )
        for path in (users, file):
            path.chmod(0o600)
            self._room.give(path)
        return file
