"""The units of deploy/systemd: systemd takes them, their commands are there, and their periods fit each other."""

import shlex
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.config import duration
from tests.deploy.commands import AFTER_THE_DRAIN, DEPLOY, check_command

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE_MAX = 20  # in tenths; 100 is a service that may do everything
each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


def options(unit: Path, name: str) -> list[str]:
    lines = unit.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def test_there_is_one_for_each_role() -> None:
    assert [unit.name for unit in UNITS] == ["fleet-api.service", "fleet-worker@.service"]


@each_unit
def test_systemd_takes_it(unit: Path, tool: Callable[[str], str], tmp_path: Path) -> None:
    (command,) = options(unit, "ExecStart")
    program = shlex.split(command)[0]
    there = shutil.which("true")  # `verify` wants a program that is there
    copy = tmp_path / unit.name.replace("@.", "@1.")
    copy.write_text(unit.read_text().replace(program, str(there)))
    done = subprocess.run([tool("systemd-analyze"), "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "fleet" in line]) == (0, []), done.stderr


@each_unit
def test_it_may_do_little(unit: Path, tool: Callable[[str], str]) -> None:
    command = [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each_unit
def test_it_runs_a_command_of_this_version(unit: Path) -> None:
    (command,) = options(unit, "ExecStart")
    program, *arguments = shlex.split(command)
    assert program.endswith("/fleet")
    check_command(arguments)


@each_unit
def test_it_is_given_the_drain_and_ten_seconds(unit: Path) -> None:
    environment = dict(line.split("=") for line in (DEPLOY / "systemd" / "fleet.env").read_text().splitlines()[1:])
    (stop,) = options(unit, "TimeoutStopSec")
    assert timedelta(seconds=int(stop)) == duration(environment["FLEET_DRAIN_TIMEOUT"]) + AFTER_THE_DRAIN
    assert options(unit, "KillMode") == ["mixed"]


@each_unit
def test_it_reads_every_secret_from_a_credential(unit: Path) -> None:
    names = [credential.partition(":")[0] for credential in options(unit, "LoadCredential")]
    assert names
    environment = " ".join(options(unit, "Environment"))
    assert all(f"_FILE=%d/{name}" in environment for name in names)
