"""The world outside: a server that numbers every effect of a handler in the order in which it came in.

`report` returns once the sink has the effect, so what a handler reported before its process was killed is never lost.
"""

import json
import os
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

from fleet.context import Context
from fleet.errors import ConfigurationError
from fleet.testing.waiting import PATIENCE_SECONDS, until
from fleet.verify.history import Recorder

VARIABLE = "FLEET_SINK"


class Effect(NamedTuple):
    """One thing that a handler did to the world outside. `n` counts from 1, over all tasks and processes."""

    n: int
    task: UUID
    attempt: int
    name: str
    args: dict[str, Any]
    pid: int


class Sink:
    """Receives effects from any number of processes, while its block lasts.

    `address` is what handlers find in FLEET_SINK. By default it is a socket in a temporary folder; `host` makes it a TCP
    port on that address instead. With `history`, a folder, each effect is a line there too.
    """

    def __init__(self, *, history: Path | str | None = None, host: str | None = None) -> None:
        self.address = ""
        self._host = host
        self._recorder = Recorder(Path(history), "sink") if history is not None else None
        self._effects: list[Effect] = []
        self._lock = threading.Lock()

    @property
    def effects(self) -> list[Effect]:
        """All effects so far, in the order of their numbers."""
        with self._lock:
            return list(self._effects)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find this sink."""
        return {VARIABLE: self.address}

    def of(self, task: UUID) -> list[Effect]:
        """Return the effects of one task."""
        return [effect for effect in self.effects if effect.task == task]

    def wait(self, count: int = 1, seconds: float = PATIENCE_SECONDS) -> list[Effect]:
        """Return all effects as soon as there are so many. Raises TimeoutError."""
        until(lambda: len(self.effects) >= count, f"{count} effects in the sink", seconds)
        return self.effects

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="fleet-sink-")
        self._server = self._listen()
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fleet sink", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()
        with self._lock:  # what comes in later has no block to be counted in
            recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()

    def _listen(self) -> socketserver.BaseServer:
        if self._host is not None:
            listening = _TcpServer((self._host, 0), _handler(self._take))
            self.address = f"tcp:{self._host}:{listening.server_address[1]}"
            return listening
        folder = Path(self._folder.name)
        path = folder / "sink"
        server = _UnixServer(str(path), _handler(self._take))
        folder.chmod(0o755)  # a container's user is another one
        path.chmod(0o777)
        self.address = f"unix:{path}"
        return server

    def _take(self, line: bytes) -> int:
        """Keep one effect, and return its number."""
        told = json.loads(line)
        with self._lock:
            effect = Effect(
                len(self._effects) + 1, UUID(told["task"]), told["attempt"], told["name"], told["args"], told["pid"]
            )
            self._effects.append(effect)
            if self._recorder is not None:
                self._recorder.write("effect", **effect._asdict() | {"task": str(effect.task)})
        return effect.n


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


def _handler(take: Callable[[bytes], int]) -> type[socketserver.StreamRequestHandler]:
    class Receive(socketserver.StreamRequestHandler):
        """Answers each line with its number; half a line, of a process killed in the midst of it, is nothing."""

        def handle(self) -> None:
            with suppress(OSError):  # its process was killed: what it had sent is known all the same
                for line in self.rfile:
                    if line.endswith(b"\n"):
                        self.wfile.write(b"%d\n" % take(line))

    return Receive


def report(context: Context, /, **args: Any) -> int:
    """Report one effect of a handler to the sink that FLEET_SINK names, and return its number once the sink has it.

    `args`, which JSON can carry, say what was done. Raises ConfigurationError where no sink is named, and OSError where
    it cannot be reached.
    """
    address = os.environ.get(VARIABLE)
    if not address:
        raise ConfigurationError(f"no sink was named: give the worker {VARIABLE}, as Sink(…).environment has it")
    told = {
        "task": str(context.task_id), "attempt": context.attempt, "name": context.name, "args": args, "pid": os.getpid(),
    }  # fmt: skip
    with _connected(address) as channel, channel.makefile("rb") as answers:
        channel.sendall(json.dumps(told).encode() + b"\n")
        answer = answers.readline()
    if not answer:
        raise ConnectionResetError(f"the sink at {address} ended before it answered")
    return int(answer)


def _connected(address: str) -> socket.socket:
    kind, _, where = address.partition(":")
    if kind == "unix":
        channel = socket.socket(socket.AF_UNIX)
        channel.settimeout(PATIENCE_SECONDS)
        channel.connect(where)
        return channel
    host, _, port = where.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
