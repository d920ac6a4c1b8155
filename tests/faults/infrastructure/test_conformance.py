"""The tests of the statements, the worker and the migrations, on other servers, through a pooler, under other Pythons."""

import os
import subprocess
import sys

import pytest

from tests.conformance.__main__ import EXIT_MISSING
from tests.conformance.targets import ROOT

TARGETS = (
    ("--server=15", "--python=3.12"),
    ("--server=17", "--python=3.13"),
    ("--server=pgbouncer",),
    ("--server=18 without notifications",),
)
LIMIT_SECONDS = 1800


@pytest.mark.conformance
@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("target", TARGETS, ids=" ".join)
def test_the_suite_holds_there_too(target: tuple[str, ...]) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("FLEET_", "PYTEST_", "PG"))
    }
    if cache := os.environ.get("FLEET_CONFORMANCE_CACHE"):
        environment["FLEET_CONFORMANCE_CACHE"] = cache
    command = [sys.executable, "-m", "tests.conformance", *target]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    said = done.stdout.strip().splitlines() or [""]
    if done.returncode == EXIT_MISSING:
        pytest.skip(said[-1])
    assert done.returncode == 0, "\n".join(said[-60:]) + done.stderr[-2000:]
