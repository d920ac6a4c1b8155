"""The worker processes of the demo: started, watched, killed, drained, and never left behind."""

import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen, TimeoutExpired
from typing import Self

from fleet.demo.errors import DemoError
from fleet.worker.runner import SUPERVISOR_FD

_LOG_LINES_SHOWN = 15
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """One worker process. `channel`: when our end of it closes, the worker drains, so it cannot outlive the demo."""

    name: str
    process: Popen[bytes]
    channel: socket.socket
    log: Path


class Crew:
    """All the workers. Leaving the block ends those that still run, in order if they let us."""

    def __init__(
        self, database_url: str, folder: Path, *, ttl: timedelta, slots: int, environment: dict[str, str]
    ) -> None:
        self._database_url = database_url
        self._folder = folder
        self._options = ("--ttl", f"{ttl.total_seconds():g}s", "--slots", str(slots))
        self._environment = environment
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            for each in self._processes.values():
                each.process.terminate()
                each.process.send_signal(signal.SIGCONT)  # one that is stopped would not see the other signal
            self._wait()
        finally:  # also where a second Ctrl-C ends the wait
            for each in self._processes.values():
                each.process.kill()
                each.process.wait()
                each.channel.close()

    def start(self, name: str) -> None:
        """Start one worker. What it says goes to a file, which is shown if it fails."""
        ours, theirs = socket.socketpair()
        log = self._folder / f"{name}.log"
        with theirs, log.open("wb") as output:
            # A group of its own, so that Ctrl-C comes to the demo alone, but in our session: should the demo be killed
            # while a worker is stopped, the kernel wakes and ends the worker.
            process = Popen(  # noqa: S603 - no shell reads the arguments
                [sys.executable, "-m", "fleet", "worker", "run", "fleet.demo:app", "--name", name, *self._options],
                env=self._environment_of(name) | {SUPERVISOR_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                process_group=0,
            )
            self._processes[name] = Process(name, process, ours, log)

    def check(self) -> None:
        """Raise DemoError if a worker has ended that nobody has killed."""
        for each in self._processes.values():
            code = each.process.poll()
            if code is not None:
                raise DemoError(
                    f"{each.name} ended with exit code {code}; the last lines of its log:\n{_tail(each.log)}"
                )

    def stop(self, name: str) -> None:
        """Freeze a worker (SIGSTOP)."""
        self._processes[name].process.send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a frozen worker go on (SIGCONT)."""
        self._processes[name].process.send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """Kill a worker (SIGKILL) and return when it is gone."""
        killed = self._processes[name]
        killed.process.kill()
        killed.process.wait()
        killed.channel.close()
        del self._processes[name]

    def drain(self) -> dict[str, int | None]:
        """Ask all to drain (SIGTERM) and return their exit codes; None for one that does not end in time."""
        for each in self._processes.values():
            each.process.terminate()
        self._wait()
        return {each.name: each.process.poll() for each in self._processes.values()}

    def session_name(self, name: str) -> str:
        """Return what the database calls the sessions of one worker."""
        return f"fleet demo {name}"

    def _environment_of(self, name: str) -> dict[str, str]:
        # Settings that are meant for other workers, such as FLEET_RENEW_EVERY, need not go together with our TTL.
        inherited = {variable: value for variable, value in os.environ.items() if not variable.startswith("FLEET_")}
        ours = {"FLEET_DATABASE_URL": _named(self._database_url, self.session_name(name))}
        return inherited | ours | self._environment

    def _wait(self) -> None:
        deadline = time.monotonic() + _END_SECONDS
        for each in self._processes.values():
            try:
                each.process.wait(max(0.0, deadline - time.monotonic()))
            except TimeoutExpired:
                return


def _named(url: str, application_name: str) -> str:
    """Return the URL or libpq's connection string with a name for the sessions."""
    if "://" not in url:
        return f"{url} application_name='{application_name}'"
    name = application_name.replace(" ", "%20")
    return f"{url}{'&' if '?' in url else '?'}application_name={name}"


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES_SHOWN:])
