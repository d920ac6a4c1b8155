"""A folder where servers work that may not run as root, and a watcher that ends them, whatever ends the test.

Everything that is started here has its working directory in the folder, and so has every child of it: PostgreSQL changes
into its data folder, the others stay where they were started. The watcher, a process of its own, waits for its input to
end, which happens when the block is left and also when the test's process is killed.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

PATIENCE_SECONDS = 60.0
ENVIRONMENT = {"PATH": f"{os.defpath}:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}


class Room:
    """`path`: the folder, owned by `account`, which runs what is started here; None: whoever runs the tests."""

    def __init__(self, path: Path, account: pwd.struct_passwd | None) -> None:
        self.path = path
        self.account = account
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str | Path, environment: Mapping[str, str] = {}) -> str:
        """Run a command to its end and return what it said. Fails with its words where it failed."""
        done = subprocess.run(
            [*self._as_account(), *map(str, command)],
            cwd=self.path, env={**ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def start(
        self, *command: str | Path, name: str, folder: Path | None = None, environment: Mapping[str, str] = {}
    ) -> "subprocess.Popen[bytes]":
        """Start a server, in the room or a folder of it; what it says stands in NAME.log."""
        with (self.path / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self._as_account(), *map(str, command)],
                cwd=folder or self.path, env={**ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def folder(self, name: str) -> Path:
        """Make a folder that the account owns."""
        made = self.path / name
        made.mkdir(mode=0o700)
        self.give(made)
        return made

    def give(self, path: Path) -> None:
        """Let the account own a file or a folder."""
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def words(self, name: str) -> str:
        """The last that a server said."""
        return (self.path / f"{name}.log").read_text(errors="replace")[-4000:]

    def _as_account(self) -> list[str]:
        if self.account is None:
            return []
        uid, gid = self.account.pw_uid, self.account.pw_gid
        return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs"]


@contextmanager
def room() -> Iterator[Room]:
    """Lend an empty room. When it is left, nothing runs in it any more, nothing is mounted in it, and it is gone."""
    account = pwd.getpwnam("postgres" if _is_known("postgres") else "nobody") if os.geteuid() == 0 else None
    path = Path(tempfile.mkdtemp(prefix="fleet-room-")).resolve()
    command = [sys.executable, "-m", "tests.conformance.room", str(path)]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2], start_new_session=True)
    lent = Room(path, account)
    path.chmod(0o711)
    lent.give(path)
    try:
        yield lent
    finally:
        assert watcher.stdin is not None
        watcher.stdin.close()
        assert watcher.wait(PATIENCE_SECONDS) == 0, f"{path} could not be cleared"
        for process in lent.started:
            process.wait(PATIENCE_SECONDS)


@contextmanager
def small_disk(room: Room, name: str, size_bytes: int) -> Iterator[Path]:
    """Mount a disk of its own of this size in the room. Only root can."""
    mounted = room.folder(name)
    room_options = f"size={size_bytes},mode=0700"
    if room.account is not None:
        room_options += f",uid={room.account.pw_uid},gid={room.account.pw_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", room_options, "fleet-test", str(mounted)], check=True)
    yield mounted  # the room's watcher takes it away: no server may be in it then


def free_ports(count: int) -> list[int]:
    """Return so many ports of 127.0.0.1 that nobody has, and that the system does not give to anybody who asks for any."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    first = 10_000 + os.getpid() * 16 % (lowest - 10_400)
    found: list[int] = []
    for port in range(first, lowest):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} ports are free between {first} and {lowest}")


def inhabitants(path: Path) -> list[psutil.Process]:
    """The processes whose working directory lies in this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(path):
                found.append(process)
    return found


def kill(path: Path) -> int:
    """End everything that works in this folder, as a power failure would; return how many there were."""
    count, deadline = 0, time.monotonic() + PATIENCE_SECONDS
    while found := [each for each in inhabitants(path) if _lives(each)]:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.suspend()  # all stand still first: nobody sees the others die
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
                count += 1
        assert time.monotonic() < deadline, f"{found} cannot be killed"
        psutil.wait_procs(found, timeout=1)
    return count


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_known(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _clear(path: Path) -> None:
    kill(path)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    for mounted in mounts:
        if Path(mounted).is_relative_to(path):
            subprocess.run(["umount", mounted], check=True)
    shutil.rmtree(path)


def _watch(path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    _clear(path)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
