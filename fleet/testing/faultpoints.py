"""Holds processes at named points of their code, and says how each goes on: see fleet/faultpoint.py."""

import asyncio
import json
import shutil
import socket
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from fleet.faultpoint import VARIABLE

PATIENCE_SECONDS = 30.0


class Hit:
    """A thread of a process that stands at a point, until it is told how to go on. Only the first word counts."""

    def __init__(self, point: str, detail: str, pid: int, channel: socket.socket) -> None:
        self.point = point
        self.detail = detail
        self.pid = pid
        self._channel = channel

    def go(self) -> None:
        """Let it go on as if nothing had been."""
        self._tell("go")

    def die(self) -> None:
        """Let it end its process by SIGKILL, there and then."""
        self._tell("die")

    def fail(self, text: str) -> None:
        """Let it raise InjectedFault with this text, of one line."""
        self._tell(f"raise {text}")

    def _tell(self, order: str) -> None:
        with suppress(OSError):  # told already, or the process has been killed meanwhile
            self._channel.sendall(order.encode() + b"\n")
        self._channel.close()

    def __repr__(self) -> str:
        return f"Hit({self.point!r}, {self.detail!r}, pid {self.pid})"


class FaultPoints:
    """Arms points, each `name` or `name:detail`, in every process that gets `environment`.

    An armed point holds everybody who comes by, again and again, until `release_all`. Has a thread of its own, so that
    tests of any kind can use it.
    """

    def __init__(self, *points: str) -> None:
        self.points = points
        self.hits: list[Hit] = []  #: all that have come by so far, in order
        self._folder = Path(tempfile.mkdtemp(prefix="fleet-"))  # with a short name: a socket's path has a limit
        self._server = socket.socket(socket.AF_UNIX)
        self._arrived = threading.Condition()
        self._waiting: list[Hit] = []  # those that nobody has waited for yet
        self._released = False
        self._thread = threading.Thread(target=self._receive, name="fleet-faultpoints", daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to stand at these points."""
        return {VARIABLE: f"{self._folder / 'points'}={','.join(self.points)}"}

    def __enter__(self) -> Self:
        self._server.bind(str(self._folder / "points"))
        self._server.listen(128)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.release_all()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        self.release_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self, name: str, seconds: float = PATIENCE_SECONDS) -> Hit:
        """Return the next one that stands at this point, as soon as there is one; each is returned once.

        `name` is a point, or `point:detail`. Raises TimeoutError.
        """
        deadline = time.monotonic() + seconds
        with self._arrived:
            while True:
                for hit in self._waiting:
                    if name in (hit.point, f"{hit.point}:{hit.detail}"):
                        self._waiting.remove(hit)
                        return hit
                if not self._arrived.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise TimeoutError(f"nobody came to {name} within {seconds:g} s; there were: {self.hits}")

    async def hit(self, name: str, seconds: float = PATIENCE_SECONDS) -> Hit:
        """Do the same as `wait`, without holding up the event loop."""
        return await asyncio.to_thread(self.wait, name, seconds)

    def release_all(self) -> None:
        """Let everybody go on who stands at a point, and all who will come by."""
        with self._arrived:
            self._released = True
            self._waiting.clear()
            for hit in self.hits:
                hit.go()

    def _receive(self) -> None:
        while True:
            try:
                channel, _ = self._server.accept()
            except OSError:  # it was shut down
                return
            with channel.makefile("r", encoding="utf-8") as lines:
                line = lines.readline()
            if not line:
                channel.close()
                continue
            here = json.loads(line)
            self._take(Hit(here["point"], here["detail"], here["pid"], channel))

    def _take(self, hit: Hit) -> None:
        with self._arrived:
            self.hits.append(hit)
            if self._released:
                hit.go()
            else:
                self._waiting.append(hit)
            self._arrived.notify_all()
