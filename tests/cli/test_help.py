"""Help costs nothing and lists everything."""

import os
import subprocess
import sys

import click
import pytest

from fleet.cli import main
from tests.cli.conftest import ROOT, Command

HEAVY = ["sqlalchemy", "alembic", "psycopg", "pydantic", "rich", "anyio"]
PROGRAM = """
import sys
from fleet.cli import main
main(sys.argv[1:], prog_name="fleet", standalone_mode=False)
loaded = [name for name in {heavy!r} if name in sys.modules]
assert not loaded, loaded
"""


@pytest.mark.parametrize("arguments", [["--help"], ["worker", "--help"], ["task", "submit", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(heavy=HEAVY), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "fleet" in done.stdout


async def test_help_lists_every_command_and_the_exit_codes(anywhere: Command) -> None:
    outcome = await anywhere("--help")
    for word in ("demo", "worker", "task", "dead", "queue", "db", "health", "4 schema does not fit", "130 interrupted"):
        assert word in outcome.out


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
async def test_every_listed_command_is_there(anywhere: Command, name: str) -> None:
    if name == "demo":
        pytest.importorskip("fleet.demo.command")
    outcome = await anywhere(name, "--help")
    assert (outcome.code, outcome.err) == (0, "")


async def test_an_unknown_command_is_wrong_usage(anywhere: Command) -> None:
    assert (await anywhere("wurker")).code == 2
    assert (await anywhere("worker", "lst")).code == 2
