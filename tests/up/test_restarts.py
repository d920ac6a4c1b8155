"""What dies under `fleet up` is there again, and tasks run."""

import os
import signal
import socket
import stat
import subprocess
import sys
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from tests.support import eventually_sync
from tests.up.running import Up


def postmaster(up: Up) -> int:
    return int((up.data / "cluster" / "postmaster.pid").read_text().split()[0])


def test_a_fleet_in_a_new_folder_is_ready_and_runs_tasks(up: Up) -> None:
    assert up.call("GET", "/readyz").status_code == 200
    welcome = up.wait_for("fleet is up")
    assert welcome["workers"] == {name: up.pid_of(name) for name in ("worker-1", "worker-2")}
    assert str(up.data) in welcome["database"]
    assert len(up.said("the schema was brought up to date")) == 1
    up.runs_a_task()


def test_its_database_is_open_to_those_who_may_read_the_file_with_its_url(up: Up) -> None:
    assert stat.S_IMODE((up.data / "url").stat().st_mode) == 0o600
    done = subprocess.run(
        [sys.executable, "-m", "fleet", "worker", "list"],
        cwd=up.folder,
        env=os.environ | {"PYTHONPATH": os.getcwd(), "FLEET_DATABASE_URL_FILE": str(up.data / "url")},  # noqa: PTH109
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "worker-2" in done.stdout


def test_its_database_bears_the_connections_of_all_workers(up: Up) -> None:
    with psycopg.connect((up.data / "url").read_text()) as connection:
        assert connection.execute("SHOW max_connections").fetchone() == ("74",)


def test_nothing_that_it_prints_or_runs_shows_the_password(up: Up) -> None:
    password = (up.data / "password").read_text()
    assert password not in up.words
    assert not any(password in command for command in up.left())


def test_a_second_one_in_the_folder_is_told_who_runs_it_and_where(up: Up) -> None:
    second = Up(up.folder, "shop:app", log="")
    assert second.ended() == 6
    assert f"pid {up.process.pid}, {up.address}" in second.words
    assert "--data and --port" in second.words
    assert up.process.poll() is None


def test_a_taken_port_is_told(up: Up) -> None:
    port = str(urlsplit(up.address).port)
    second = Up(up.folder, "shop:app", "--data", str(up.folder / "other"), f"--port={port}", log="")
    assert second.ended() == 6
    assert f"port {port} on 127.0.0.1 cannot be had: address already in use" in second.words
    assert "Choose another with --port" in second.words


@pytest.mark.fault("Death", "a child of the supervisor is killed")
def test_a_killed_worker_is_replaced(up: Up) -> None:
    killed = up.pid_of("worker-1")
    psutil.Process(killed).kill()
    up.wait_for(f"worker-1 runs again: pid {eventually_sync(lambda: another(up, 'worker-1', killed))}")
    up.runs_a_task()


def test_a_killed_api_is_replaced_and_no_connection_is_refused_meanwhile(up: Up) -> None:
    killed = up.pid_of("api")
    psutil.Process(killed).kill()
    address = ("127.0.0.1", urlsplit(up.address).port)

    def connects_until_it_is_back() -> int:
        with socket.create_connection(address):
            return another(up, "api", killed)

    eventually_sync(connects_until_it_is_back)
    assert up.call("GET", "/readyz").status_code == 200
    up.runs_a_task()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
@pytest.mark.fault("Database", "an immediate crash and a restart")
def test_a_crashed_database_is_started_again(up: Up, number: signal.Signals) -> None:
    restarts = len(up.said("embedded server had ended: it runs again"))
    killed = postmaster(up)
    os.kill(killed, number)
    again = up.wait_for("embedded server had ended: it runs again", restarts + 1)
    assert again["pid"] == postmaster(up) != killed
    eventually_sync(lambda: up.call("GET", "/readyz").status_code == 200)
    eventually_sync(lambda: up.call("POST", "/tasks", {"name": "add", "args": {"a": 1, "b": 2}}).status_code == 202)
    up.runs_a_task()
    assert up.call("GET", "/workers").status_code == 200


def another(up: Up, name: str, than: int) -> int:
    """The pid of a child of this name, once it is not that one."""
    pid = up.pid_of(name)
    return pid if pid != than else 0
