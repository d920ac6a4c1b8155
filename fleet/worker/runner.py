"""A worker as a whole process: signals drain it, its supervisor learns its leases, and it exits whatever handlers do."""

import asyncio
import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import anyio

from fleet.events import Event, LeaseGranted
from fleet.worker.systemd import Systemd

if TYPE_CHECKING:
    from fleet.worker.process import Worker

SUPERVISOR_FD = "FLEET_SUPERVISOR_FD"
EXIT_STUCK = 70
COLLECT_AFTER = (10_000, 20, 20)


def run(worker: "Worker") -> int:
    """Run until a signal, the supervisor's end or a stuck handler drains it; return the exit code.

    SIGTERM or SIGINT once: drain. Twice: do not wait for handlers. Does not return where a handler cannot be ended.
    """
    spare_the_collector()
    anyio.run(_serve, worker, backend_options={"use_uvloop": sys.platform != "win32"})
    return 0


def address_of(listening: socket.socket) -> str:
    """Return where a socket is asked over HTTP."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def spare_the_collector() -> None:
    """Let the garbage collector leave alone what start-up made, and look less often.

    Measured with a handler of 1 ms: 60 instead of 74 µs of processor time a task, a fifth more tasks a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def supervisor_gone() -> None:
    """Return when the supervisor of this process, which is no worker, has ended; wait for ever where there is none.

    Call it once: it takes the channel to the supervisor out of the environment.
    """
    channel = _channel()
    if channel is None:
        await anyio.sleep_forever()
    else:
        with channel:
            await _closed(channel)


async def _serve(worker: "Worker") -> None:
    """Serve until drained. What cannot be ended would keep the loop, and the interpreter, from ending too."""
    asked = False
    channel = _channel()
    if channel is not None:
        worker.events.subscribe(lambda event: _report_lease(channel, event))
    systemd = Systemd(os.environ)
    systemd.follow(worker.events)
    # The receiver comes first: a signal that is sent as soon as the lease can be seen drains, and does not kill.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with worker, anyio.create_task_group() as group:

            async def obey_signals() -> None:
                nonlocal asked
                async for number in signals:
                    asked = True
                    worker.drain(f"received {signal.Signals(number).name}")

            group.start_soon(obey_signals, name="signals")
            group.start_soon(systemd.feed, name="watchdog")
            if channel is not None:
                group.start_soon(_follow_supervisor, channel, worker, name="supervisor")
            await worker.wait()
            group.cancel_scope.cancel()
    if worker.stuck:
        _exit_at_once(0 if asked else EXIT_STUCK)


def _channel() -> socket.socket | None:
    """Return the socket to the supervisor, if there is one. What handlers start must not inherit it."""
    number = os.environ.pop(SUPERVISOR_FD, None)
    if number is None:
        return None
    channel = socket.socket(fileno=int(number))
    channel.set_inheritable(False)
    channel.setblocking(False)
    return channel


def _report_lease(channel: socket.socket, event: Event) -> None:
    if isinstance(event, LeaseGranted):
        with suppress(OSError):  # the supervisor is gone: _follow_supervisor sees it too
            channel.send(f"{event.lease.id}\n".encode())


async def _follow_supervisor(channel: socket.socket, worker: "Worker") -> None:
    """Drain when the supervisor is gone: nobody would restart this process or see it die."""
    await _closed(channel)
    worker.drain("its supervisor is gone")


async def _closed(channel: socket.socket) -> None:
    """Return when the other end is closed: nothing is ever sent to us."""
    with suppress(OSError):
        await asyncio.get_running_loop().sock_recv(channel, 1)


def _exit_at_once(code: int) -> NoReturn:
    """Leave a thread behind that will not end: a normal exit would wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
