"""The end of the notification socket that systemd has: what is told, by which process, and when it came."""

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support import PATIENCE_SECONDS

_CREDENTIALS = struct.Struct("3i")


class Told(NamedTuple):
    """One datagram: its lines, the process that sent it, and when it was read."""

    lines: list[str]
    pid: int
    at: float


class Manager:
    """Stands for systemd: reads what its services tell."""

    def __init__(self, path: Path) -> None:
        self.told: list[Told] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    def close(self) -> None:
        self._socket.close()

    def read(self) -> list[Told]:
        """Read all that has come in by now, and return it."""
        new: list[Told] = []
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                self.told += new
                return new
            pid, _, _ = _CREDENTIALS.unpack(ancillary[0][2][: _CREDENTIALS.size])
            new.append(Told(data.decode().splitlines(), pid, time.monotonic()))

    async def tells(self, beginning: str, count: int = 1) -> list[Told]:
        """Return so many messages from now on with a line that begins so."""
        found: list[Told] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, (
                f"{len(found)} of {count} messages like {beginning!r}: {self.told[-20:]}"
            )
            found += [each for each in self.read() if any(line.startswith(beginning) for line in each.lines)]
            await asyncio.sleep(0.01)
        return found


@contextmanager
def manager(folder: Path) -> Iterator[tuple[Manager, dict[str, str]]]:
    """Listen as systemd does, for the block; also return what it would give a service, whose watchdog waits 0.3 s."""
    path = folder / "notify"
    opened = Manager(path)
    try:
        yield opened, {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "300000"}
    finally:
        opened.close()
