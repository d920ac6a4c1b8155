"""A test holds other processes at points of their code and decides how each goes on."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.faultpoint import VARIABLE, arm, faultpoint
from fleet.testing.faultpoints import FaultPoints

PROGRAM = """
from fleet import faultpoint
print("begin", flush=True)
faultpoint("first")
faultpoint("second", "this")
print("end", flush=True)
"""
Start = Callable[[FaultPoints], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the program with these points; it is gone afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(points: FaultPoints) -> "subprocess.Popen[str]":
        command: list[Any] = [sys.executable, "-c", PROGRAM]
        started.append(
            subprocess.Popen(command, env=os.environ | points.environment, stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_stands_at_an_armed_point_until_it_is_let_go(start: Start) -> None:
    with FaultPoints("first", "second:this") as points:
        process = start(points)
        hit = points.wait("first")
        assert (hit.point, hit.detail, hit.pid) == ("first", "", process.pid)
        assert process.poll() is None
        hit.go()
        points.wait("second:this").go()
        assert process.communicate(timeout=30)[0] == "begin\nend\n"
    assert [hit.point for hit in points.hits] == ["first", "second"]


def test_a_process_that_is_told_to_die_runs_no_code_any_more(start: Start) -> None:
    with FaultPoints("second") as points:
        process = start(points)
        points.wait("second").die()
        assert process.communicate(timeout=30)[0] == "begin\n"
        assert process.returncode == -signal.SIGKILL


async def test_a_test_with_an_event_loop_can_wait_too(start: Start) -> None:
    with FaultPoints("first") as points:
        process = start(points)
        hit = await points.hit("first")
        assert hit.pid == process.pid
        hit.go()


def test_a_point_that_is_not_armed_holds_nobody(start: Start) -> None:
    with FaultPoints("second:that") as points:
        assert start(points).communicate(timeout=30)[0] == "begin\nend\n"
        with pytest.raises(TimeoutError, match="nobody came to second within 0 s"):
            points.wait("second", 0)


def test_who_waits_gets_each_process_once(start: Start) -> None:
    with FaultPoints("first") as points:
        pids = {start(points).pid for _ in range(3)}
        assert {points.wait("first").pid for _ in range(3)} == pids
        with pytest.raises(TimeoutError):
            points.wait("first", 0)


def test_after_release_all_nobody_is_held_any_more(start: Start) -> None:
    with FaultPoints("first", "second") as points:
        process = start(points)
        points.wait("first")
        points.release_all()
        assert process.communicate(timeout=30)[0] == "begin\nend\n"
        assert start(points).communicate(timeout=30)[0] == "begin\nend\n"


def test_leaving_the_block_lets_everybody_go(start: Start) -> None:
    with FaultPoints("first") as points:
        process = start(points)
        points.wait("first")
    assert process.communicate(timeout=30)[0] == "begin\nend\n"


def test_a_thread_of_the_test_itself_can_be_held() -> None:
    passed = threading.Event()

    def pass_by() -> None:
        faultpoint("first")
        passed.set()

    with FaultPoints("first") as points:
        arm(points.environment[VARIABLE])
        try:
            thread = threading.Thread(target=pass_by)
            thread.start()
            hit = points.wait("first")
            assert not passed.is_set()
            hit.go()
            assert passed.wait(30)
            thread.join()
        finally:
            arm(None)
