"""Tells systemd how a process of its goes, as a unit with Type=notify has to: one datagram each time."""

import socket
from collections.abc import MutableMapping
from contextlib import suppress

import anyio

from fleet.events import ApiListening, ChildStarted, DrainStarted, Event, Events, LeaseGranted, LeaseInDoubt, LeaseLost
from fleet.worker.loop import pause

_PATIENCE_SECONDS = 0.1  # a manager that reads nothing must not hold up the loop
_FEEDS = 3  # in one period of the watchdog


class Systemd:
    """The notification socket of this process's unit; silent where there is none.

    What this process starts must not speak for it: making one takes its variables out of the environment.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_seconds = int(environ.pop("WATCHDOG_USEC", "0")) / 1_000_000
        environ.pop("WATCHDOG_PID", None)

    def follow(self, events: Events) -> None:
        """Tell what a worker, a supervisor or an API does from now on."""
        if self._address:
            events.subscribe(self._notice)

    async def feed(self) -> None:
        """Feed the watchdog, if there is one, for ever: by the event loop's turns alone, whatever the database does."""
        if not (self._address and self._watchdog_seconds):
            await anyio.sleep_forever()
        while True:
            self._tell("WATCHDOG=1")
            await pause(self._watchdog_seconds / _FEEDS)

    def _notice(self, event: Event) -> None:
        match event:
            case LeaseGranted(lease):
                self._tell("READY=1", f"STATUS=holds the lease {lease.id}")
            case LeaseInDoubt(lease):
                self._tell(f"STATUS=the lease {lease.id} could not be renewed: nothing starts")
            case LeaseLost(lease):
                self._tell(f"STATUS=the lease {lease.id} is over: asks for another")
            case ChildStarted():
                self._tell("READY=1", "STATUS=keeps its processes alive")
            case ApiListening(address):
                self._tell("READY=1", f"STATUS=answers on {address}")
            case DrainStarted(why):
                self._tell("STOPPING=1", f"STATUS=drains: {why}")

    def _tell(self, *fields: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out, suppress(OSError):
            out.settimeout(_PATIENCE_SECONDS)
            out.sendto("\n".join(fields).encode(), self._address)
