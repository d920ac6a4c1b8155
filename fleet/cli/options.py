"""Options that several commands share."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from fleet.config import duration
from fleet.errors import ConfigurationError

Command = TypeVar("Command", bound=Callable[..., Any])


class Duration(click.ParamType):
    """A number of seconds, or one with its unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return duration(str(value), "it")
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


class QueueName(click.ParamType):
    """A name as the rest of the system accepts it."""

    name = "queue"
    _LENGTH_MAX = 200

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not (0 < len(text) <= self._LENGTH_MAX and text.isprintable()):
            self.fail(f"a queue's name has 1 to {self._LENGTH_MAX} printable characters", param, ctx)
        return text


DURATION = Duration()
QUEUE_NAME = QueueName()


def database_option(command: Command) -> Command:
    """Let the database be named."""
    return click.option(
        "--database-url", metavar="URL", help="Default: FLEET_DATABASE_URL, then libpq's PG* variables."
    )(command)


def output_option(command: Command) -> Command:
    """Let the form of what is printed be chosen."""
    return click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="On stdout."
    )(command)


def limit_option(command: Command) -> Command:
    """Let the number of rows be chosen."""
    return click.option(
        "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many."
    )(command)
