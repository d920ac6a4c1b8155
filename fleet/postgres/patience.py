"""How long an answer is waited for: whatever acknowledges for a server that does not hear us would keep us for ever."""

import asyncio
import math
import os
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, Self

import psycopg

_GRACE_SECONDS = 0.05
_LAST_DATA_RECEIVED = 52  # where Linux's tcp_info has it: milliseconds ago


class Patience:
    """With one answer. Where nothing comes in for so long, the connection is shut.

    A time-out that cancels would not do: the driver then waits for the answer all the same.
    """

    __slots__ = ("_connection", "_longest", "_loop", "_seconds", "_timer")

    def __init__(self, connection: psycopg.AsyncConnection[Any], seconds: float | None) -> None:
        self._connection = connection
        self._seconds = seconds
        self._longest = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._cancel()

    def begin(self, times: float = 1.0) -> None:
        """Have it anew, so many times as long: something has come, or gone."""
        self._cancel()
        if self._seconds is not None:
            self._longest = times * self._seconds
            self._timer = self._loop.call_later(self._longest, self._look_again)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_again(self) -> None:
        """A slow link is no silence. And where it was this loop that stood still, what has come in is read first."""
        with suppress(psycopg.Error):
            left = self._longest - _silent_seconds(self._connection.fileno())
            following = self._shut if left <= 0 else self._look_again
            self._timer = self._loop.call_later(max(left, _GRACE_SECONDS), following)

    def _shut(self) -> None:
        with suppress(psycopg.Error):
            shut(self._connection.fileno())


def _silent_seconds(descriptor: int) -> float:
    """Return for how long nothing has come in, as the system's TCP knows it; infinity where it does not."""
    if not sys.platform.startswith("linux"):
        return math.inf
    try:
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            known = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED + 4)
    except OSError:  # no TCP: a socket of this machine alone
        return math.inf
    return float(struct.unpack_from("I", known, _LAST_DATA_RECEIVED)[0]) / 1000


def shut(descriptor: int) -> None:
    """Let whoever waits for this socket, in any thread, read its end."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
