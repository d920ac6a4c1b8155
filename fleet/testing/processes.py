"""The driver of replicas that are processes of this machine, each behind a proxy of its own."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from signal import Signals

from fleet.testing.driver import Program
from fleet.testing.proxy import Proxy
from fleet.testing.waiting import PATIENCE_SECONDS
from fleet.worker.runner import SUPERVISOR_FD


class ProcessReplica:
    """`python -m fleet worker run`, in a session of its own. It drains by itself when the test's process is gone."""

    def __init__(self, name: str, program: Program, folder: Path) -> None:
        self.name = name
        self._program = program
        self._log = folder / f"{name}.log"
        self._popen: subprocess.Popen[bytes] | None = None
        self._tether: socket.socket | None = None
        self.proxy = Proxy(program.database_url, history=program.history)
        self.proxy.__enter__()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        return self._process.poll()

    def start(self) -> None:
        self._cut_tether()
        self._tether, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as words:
            self._popen = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "fleet", "worker", "run", self._program.app, f"--name={self.name}"],
                env=self._environment() | {SUPERVISOR_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )

    def signal(self, number: Signals) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # it has ended instead, and its end has been noticed already
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def partition(self) -> None:
        self.proxy.freeze("both")

    def heal(self) -> None:
        self.proxy.heal()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} (pid {self.pid}) did not end within {seconds:g} s") from None

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def close(self) -> None:
        """Kill it with all that its handlers started, and end its proxy."""
        if self._popen is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait(PATIENCE_SECONDS)
        self._cut_tether()
        self.proxy.__exit__(None, None, None)

    @property
    def _process(self) -> "subprocess.Popen[bytes]":
        if self._popen is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self._popen

    def _cut_tether(self) -> None:
        if self._tether is not None:
            self._tether.close()
            self._tether = None

    def _environment(self) -> dict[str, str]:
        """Return the environment of this process with the replica's own; what can be imported here can be there."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLEET_DATABASE_URL")}
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - the path takes strings
        ours = {"PYTHONPATH": path, "FLEET_DATABASE_URL": self.proxy.url}
        return kept | ours | dict(self._program.environment)
