"""A PostgreSQL of any major, started and killed by a test."""

import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.conformance.room import PATIENCE_SECONDS, Room, free_ports, kill

_TCP_ONLY = {"listen_addresses": "127.0.0.1", "unix_socket_directories": ""}


class Cluster:
    """A data folder and its server. `settings`: server parameters; `initdb`: further words of its making."""

    def __init__(
        self,
        room: Room,
        binaries: Path,
        settings: Mapping[str, str] = {},
        initdb: tuple[str, ...] = (),
        name: str = "data",
    ) -> None:
        self.room, self.binaries, self.name = room, binaries, name
        self.data = room.path / name
        self.port = free_ports(1)[0]
        self.settings = {**_TCP_ONLY, "port": str(self.port), **settings}
        self.url = f"postgresql://postgres:{self._initialise(initdb)}@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None

    def url_of(self, database: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{database}").geturl()

    def start(self, *, wait: bool = True) -> "Cluster":
        """Start the postmaster, and return when it answers."""
        words = [f"--{key}={value}" for key, value in self.settings.items()]
        self._process = self.room.start(self.binaries / "postgres", "-D", self.data, *words, name=self.name)
        if wait:
            self.wait()
        return self

    def wait(self) -> None:
        """Return when the server answers questions. Fails with its words where it has ended, or does not come up."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError as error:
                words = f"{error}\n{self.words()}"
                assert self.runs(), words
                assert time.monotonic() < deadline, words
                time.sleep(0.05)
            else:
                return

    def runs(self) -> bool:
        """Whether the postmaster has not ended."""
        return self._process is not None and self._process.poll() is None

    def stop(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT: like a crash; SIGINT: in order, dropping all sessions."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """End all its processes at once, as a power failure would."""
        assert kill(self.data) > 0
        assert self._process is not None
        self._process.wait(PATIENCE_SECONDS)

    def words(self) -> str:
        return self.room.words(self.name)

    def _initialise(self, more: tuple[str, ...]) -> str:
        password = secrets.token_urlsafe(16)
        file = self.room.path / f"{self.name}.password"
        file.write_text(password, encoding="ascii")
        file.chmod(0o600)
        self.room.give(file)
        self.room.run(
            self.binaries / "initdb", "-D", self.data, "--username=postgres", f"--pwfile={file}",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", *more,
        )  # fmt: skip
        return password
