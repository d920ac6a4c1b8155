"""Fault points cost nothing unless the environment arms them, and never hold a process whose test is gone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleet
from fleet.faultpoint import VARIABLE, Armed, InjectedFault, arm, faultpoint
from fleet.testing.faultpoints import FaultPoints


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm(None)


def test_no_point_is_armed_where_the_environment_says_nothing() -> None:
    assert VARIABLE not in os.environ
    assert faultpoint("claim.before") is None  # type: ignore[func-returns-value]
    for text in (None, "", "/a/socket", "/a/socket="):
        assert Armed.read(text) is None


def test_points_are_named_with_or_without_a_detail() -> None:
    armed = Armed.read("/a/socket=claim.after,handler.leave:charge")
    assert armed == Armed("/a/socket", frozenset({"claim.after", "handler.leave:charge"}))


def test_users_import_the_function_from_the_package_whatever_was_imported_before() -> None:
    assert fleet.faultpoint is faultpoint
    for first in ("fleet.faultpoint", "fleet.app", "fleet.worker.slots"):
        script = (
            f"import {first}, fleet; from fleet import faultpoint; faultpoint('x'); print(callable(fleet.faultpoint))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"


def test_an_armed_point_goes_on_where_no_test_is_there_any_more(tmp_path: Path) -> None:
    arm(f"{tmp_path / 'nobody'}=claim.after")
    faultpoint("claim.after")


def test_only_the_armed_points_and_details_are_held() -> None:
    with FaultPoints("one", "two:this") as points:
        arm(points.environment[VARIABLE])
        points.release_all()
        for name, detail in (("one", ""), ("one", "any"), ("two", ""), ("two", "this"), ("two", "that"), ("three", "")):
            faultpoint(name, detail)
    assert [(hit.point, hit.detail) for hit in points.hits] == [("one", ""), ("one", "any"), ("two", "this")]
    assert {hit.pid for hit in points.hits} == {os.getpid()}


def test_what_a_point_raises_says_what_the_test_said() -> None:
    with FaultPoints("point") as points:
        script = "from fleet import faultpoint; faultpoint('point')"
        process = subprocess.Popen(
            [sys.executable, "-c", script], env=os.environ | points.environment, stderr=subprocess.PIPE, text=True
        )
        points.wait("point").fail("no more ink")
        _, words = process.communicate(timeout=30)
    assert words.splitlines()[-1] == f"fleet.faultpoint.{InjectedFault.__name__}: no more ink"
    assert process.returncode == 1
