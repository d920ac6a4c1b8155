"""How a fleet ends: in order at a signal, in a hurry at the second, and without leftovers when it is killed."""

import errno
import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import httpx
import psutil
import psycopg
import pytest

from fleet import embedded
from tests.cli.test_processes import read_until, terminal
from tests.support import eventually_sync
from tests.up.running import Up

Start = Callable[..., Up]
pytestmark = pytest.mark.faults


def holding(up: Up) -> tuple[str, Path]:
    """A task that runs, and the file that lets it end."""
    started, until = up.folder / "started", up.folder / "until"
    task_id = up.submit("hold", started=str(started), until=str(until))
    eventually_sync(started.exists)
    return task_id, until


def is_refused(address: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", urlsplit(address).port)) == errno.ECONNREFUSED


def as_advised(shown: str) -> int:
    """Send the request that the advice shows; return the status."""
    url, body = re.search(r"http://\S+/tasks", shown), re.search(r"-d '(.*)'", shown)
    assert url
    assert body
    headers = dict(line.split(": ") for line in re.findall(r"-H '(.*?)'", shown))
    with httpx.Client(trust_env=False) as client:
        return client.post(url[0], content=body[1], headers=headers).status_code


def hang_up(listener: socket.socket) -> None:
    """Close each connection, until the listener is shut down."""
    with suppress(OSError):
        while True:
            listener.accept()[0].close()


def stored(data: Path, task_id: str) -> tuple[object, ...]:
    """How a task stands in the folder of a fleet that has ended."""
    with embedded.shared(data) as server, psycopg.connect(server.url) as connection:
        found = connection.execute(
            "SELECT state, failure_code, (SELECT bool_and(state = 'RELEASED') FROM fleet.lease) FROM fleet.task"
            " WHERE id = %s",
            (task_id,),
        ).fetchone()
    assert found is not None
    return found


def test_a_signal_lets_tasks_finish_and_ends_everything_and_the_next_start_goes_on_with_the_data(start: Start) -> None:
    first = start("shop:app", "--workers=1").ready()
    task_id, until = holding(first)
    first.send(signal.SIGTERM)
    first.wait_for("waiting for running tasks")
    eventually_sync(lambda: is_refused(first.address))
    until.touch()
    assert first.ended() == 0
    assert first.left() == []
    assert not (first.data / "url").exists()
    second = start("shop:app", "--workers=1", database_url_file=str(first.data / "url")).ready()
    assert second.task(task_id)["state"] == "SUCCEEDED"
    assert second.said("the schema was brought up to date") == []
    second.send(signal.SIGHUP)
    assert second.ended() == 0


@pytest.mark.fault("Deploy", "SIGTERM twice")
def test_a_second_signal_waits_for_no_task(start: Start) -> None:
    up = start("shop:app", "--workers=1", drain_timeout="1h").ready()
    task_id, _ = holding(up)
    up.send(signal.SIGINT)
    up.wait_for("waiting for running tasks")
    assert psutil.pid_exists(up.pid_of("worker-1"))
    up.send(signal.SIGINT)
    assert up.ended() == 0
    assert up.left() == []
    assert stored(up.data, task_id) == ("FAILED", "interrupted", True)


@pytest.mark.fault("Death", "the supervisor is killed")
def test_when_it_is_killed_the_others_finish_their_tasks_and_nothing_is_left(start: Start) -> None:
    up = start("shop:app", "--workers=2").ready()
    task_id, until = holding(up)
    up.send(signal.SIGKILL)
    assert up.ended() == -signal.SIGKILL
    eventually_sync(lambda: not any("worker-1" in command for command in up.left()) or "worker-2" not in str(up.left()))
    until.touch()
    eventually_sync(lambda: not up.left())
    assert stored(up.data, task_id) == ("SUCCEEDED", None, True)


def test_when_the_database_cannot_come_back_the_fleet_ends_and_says_why(start: Start) -> None:
    up = start("shop:app", "--workers=1", ttl="2s").ready()
    port = int((up.data / "port").read_text())
    postmaster = int((up.data / "cluster" / "postmaster.pid").read_text().split()[0])
    up.send(signal.SIGSTOP)  # it must not be quicker than the thief
    os.kill(postmaster, signal.SIGKILL)
    eventually_sync(lambda: not psutil.pid_exists(postmaster))
    with socket.create_server(("127.0.0.1", port)) as thief:
        answering = Thread(target=hang_up, args=(thief,))
        answering.start()
        up.send(signal.SIGCONT)
        assert up.ended() == 6
        thief.shutdown(socket.SHUT_RDWR)
        answering.join()
    assert "another program took its port. Run `fleet up` again" in up.words
    assert up.left() == []


def test_a_sample_is_analyzed_on_a_terminal_and_ctrl_c_there_drains(start: Start) -> None:
    with terminal() as (person, program):
        up = start("--sample", "--workers=1", terminal=program, log="")
        shown = read_until(person, b"Ctrl-C drains").decode()
        assert all(os.getsid(each.pid) == each.pid for each in psutil.Process(up.process.pid).children())
        assert as_advised(shown) == 202
        os.write(person, b"\x03")
        shown += read_until(person, b"The data stays in").decode()
        assert up.ended() == 0
    assert "Analyzing texts" in shown
    assert "79 texts were analyzed in" in shown
    assert f"FLEET_DATABASE_URL_FILE={up.data}/url" in shown
    assert "Draining" in shown
    assert "Traceback" not in shown
    assert up.left() == []
