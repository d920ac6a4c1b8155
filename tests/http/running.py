"""A real `fleet api run`, and raw bytes to and from it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from tests.support import PATIENCE_SECONDS, eventually_sync

ROOT = Path(__file__).resolve().parents[2]
API = ("-m", "fleet", "api", "run", "tests.http.shop:app", "--log=json")


def environment(database_url: str | None, **settings: str) -> dict[str, str]:
    """Return an environment without any setting from outside."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FLEET_", "PG"))}
    ours |= {"PYTHONPATH": str(ROOT), **settings}
    return ours if database_url is None else ours | {"FLEET_DATABASE_URL": database_url}


class Running:
    """A process of Python that serves the shop; ended with the `with` block. What it says goes to a file."""

    def __init__(
        self,
        folder: Path,
        database_url: str | None,
        *arguments: str,
        program: Sequence[str] = API,
        listening: socket.socket | None = None,
        supervisor: socket.socket | None = None,
        **settings: str,
    ) -> None:
        """Start it on any free port, or on the socket that is `listening` already."""
        self.log = folder / f"{uuid4().hex}.log"
        lent = [each.fileno() for each in (listening, supervisor) if each is not None]
        where = () if program != API else (f"--fd={listening.fileno()}",) if listening else ("--port=0",)
        if supervisor is not None:
            settings["FLEET_SUPERVISOR_FD"] = str(supervisor.fileno())
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *program, *where, *arguments],
                cwd=folder,
                env=environment(database_url, **settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=lent,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def said(self, message: str) -> list[dict[str, Any]]:
        """The lines of the JSON log with this message."""
        *lines, _ = self.words.split("\n")
        return [line for line in map(json.loads, lines) if line["message"] == message]

    def wait_for(self, message: str) -> dict[str, Any]:
        def probe() -> list[dict[str, Any]]:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.words}"
            return self.said(message)

        return eventually_sync(probe)[-1]

    @property
    def address(self) -> str:
        return str(self.wait_for("api listening")["address"])

    def ended(self) -> int:
        """Return its exit code when it has ended by itself."""
        try:
            return int(self.process.wait(PATIENCE_SECONDS))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.words}") from None

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        with httpx.Client(base_url=self.address, trust_env=False, timeout=PATIENCE_SECONDS) as client:
            return client.request(method, path, **options)

    def connect(self) -> socket.socket:
        """Return a connection, for bytes that no HTTP library would send."""
        parts = urlsplit(self.address)
        return socket.create_connection((parts.hostname, parts.port or 80), PATIENCE_SECONDS)

    def tell(self, *parts: bytes) -> bytes:
        """Send these bytes on one connection, and return all that comes until the server closes it."""
        with closing(self.connect()) as wire:
            for part in parts:
                wire.sendall(part)
            return received(wire)


def received(wire: socket.socket) -> bytes:
    """Read until the other end closes."""
    data = b""
    while more := wire.recv(65536):
        data += more
    return data
