"""Completion in a shell: names, options and values, and nothing heavy loaded at the press of a key."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Command
from tests.cli.test_help import HEAVY

PROGRAM = """
import atexit, sys
from fleet.cli import main
atexit.register(lambda: print(*(name for name in {heavy!r} if name in sys.modules), file=sys.stderr, end=""))
main(prog_name="fleet")
"""


def complete(*words: str, unwanted: Sequence[str] = HEAVY) -> list[str]:
    """Return what bash is told for `fleet WORDS`, the last of which is being typed; no unwanted module may be loaded."""
    line = ["fleet", *words]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(heavy=unwanted)],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "_FLEET_COMPLETE": "bash_complete"}
        | {"COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(words))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("d",), ["demo", "dead", "db", "doctor"]),
        (("task", "s"), ["show", "submit"]),
        (("task", "submit", "--wait"), ["--wait", "--wait-timeout"]),
        (("task", "list", "--state", "s"), ["succeeded"]),
        (("task", "list", "--code", "t"), ["timeout"]),
        (("dead", "list", "-o", ""), ["table", "json"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("worker", "x"), []),
    ],
    ids=" ".join,
)
def test_what_fits_is_offered_and_nothing_heavy_is_loaded(words: tuple[str, ...], found: list[str]) -> None:
    assert complete(*words) == found


def test_names_of_commands_are_offered_without_loading_one() -> None:
    assert complete("de", unwanted=["fleet.cli.dead", "fleet.demo"]) == ["demo", "dead"]


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    program = tmp_path / "fleet"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m fleet "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(fleet completion bash)"; complete -p fleet; '
        'COMP_WORDS=(fleet queue res); COMP_CWORD=2; _fleet_completion fleet; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    registered, completed = done.stdout.splitlines()
    assert "_fleet_completion fleet" in registered
    assert completed == "resume"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_there_is_a_script_for_each_shell(anywhere: Command, shell: str) -> None:
    outcome = await anywhere("completion", shell)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"_FLEET_COMPLETE={shell}_complete" in outcome.out


async def test_another_shell_is_wrong_usage(anywhere: Command) -> None:
    assert (await anywhere("completion", "csh")).code == 2
