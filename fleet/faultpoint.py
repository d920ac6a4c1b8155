"""Named points at which a test can hold a process, kill it or make it fail. Nothing happens unless the environment says so.

`FLEET_FAULTPOINTS=/path/of/socket=claim.after,handler.leave:charge` arms two of them, the second for one task alone.
An armed point tells the socket where it is and blocks its thread until it is told how to go on.
"""

import os
from typing import NamedTuple

VARIABLE = "FLEET_FAULTPOINTS"


class InjectedFault(RuntimeError):
    """Raised at a fault point because a test said so."""


class Armed(NamedTuple):
    """The points that are armed, each `name` or `name:detail`, and the socket of the test that holds them."""

    path: str
    points: frozenset[str]

    @classmethod
    def read(cls, text: str | None) -> "Armed | None":
        """Read the environment's variable; None where no point is armed."""
        path, _, points = (text or "").partition("=")
        return cls(path, frozenset(points.split(","))) if path and points else None

    def reach(self, name: str, detail: str) -> None:
        """Do what the test says, if this point is armed. Without a test at the other end everything goes on."""
        if name not in self.points and f"{name}:{detail}" not in self.points:
            return
        order, _, words = self._ask(name, detail).partition(" ")
        if order == "die":
            os.kill(os.getpid(), 9)
        if order == "raise":
            raise InjectedFault(words)

    def _ask(self, name: str, detail: str) -> str:
        import json  # noqa: PLC0415 - else every program that uses fleet would wait for these two
        import socket  # noqa: PLC0415

        here = json.dumps({"point": name, "detail": detail, "pid": os.getpid()})
        try:
            with socket.socket(socket.AF_UNIX) as channel:
                channel.connect(self.path)
                channel.sendall(here.encode() + b"\n")
                with channel.makefile("r", encoding="utf-8") as orders:
                    return orders.readline().rstrip("\n")
        except OSError:  # nobody is there any more
            return "go"


_armed = Armed.read(os.environ.get(VARIABLE))


def faultpoint(name: str, detail: str = "") -> None:
    """Stand here if a test has armed this point; `detail` narrows it down, such as to a task's name.

    Blocks the thread, and with it the event loop where there is one. Raises InjectedFault if the test says so.
    """
    if _armed is not None:
        _armed.reach(name, detail)


def arm(text: str | None) -> None:
    """Arm the points of this process itself, in the words of the environment's variable; None: none of them."""
    global _armed  # noqa: PLW0603 - what the environment says, read once, is the state of the process
    _armed = Armed.read(text)
