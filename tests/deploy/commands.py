"""What deploy/ calls is there: commands and options that this version has, and periods that fit each other."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import click

from fleet.cli import main

DEPLOY = Path(__file__).parents[2] / "deploy"
AFTER_THE_DRAIN = timedelta(seconds=10)


def check_command(arguments: Sequence[str]) -> None:
    """Fail where `fleet ARGUMENTS` is wrong usage; nothing is run."""
    command: click.Command = main
    context = click.Context(main, info_name="fleet")
    words = list(arguments)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, f"fleet {' '.join(arguments)} is no command"
        command, context = found, click.Context(found, parent=context)
    command.make_context(command.name, words, resilient_parsing=False)
