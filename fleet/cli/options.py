"""Options that several commands share."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from fleet import config
from fleet.errors import ConfigurationError

Command = TypeVar("Command", bound=Callable[..., Any])


_QUEUE_NAME_MAX = 200
PORT_MAX = 65535


def duration(text: str) -> timedelta:
    """Read a number of seconds, or one with its unit."""
    try:
        return config.duration(text, "it")
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


def ago(text: str) -> datetime:
    """Read a duration, and return the moment that is so long past."""
    try:
        return datetime.now(UTC) - duration(text)
    except OverflowError:
        raise click.BadParameter(f"{text!r} is longer than time has lasted") from None


def moment(text: str) -> datetime:
    """Read a moment of ISO 8601, with its time zone."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no moment; write it such as 2030-01-31T09:00:00Z") from None
    if read.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone; end it with Z for UTC, or with an offset such as +02:00")
    return read


def queue_name(text: str) -> str:
    """Read a queue's name, as the rest of the system accepts it."""
    if not (0 < len(text) <= _QUEUE_NAME_MAX and text.isprintable()):
        raise click.BadParameter(f"a queue's name has 1 to {_QUEUE_NAME_MAX} printable characters")
    return text


def address(text: str) -> tuple[str, int] | None:
    """Read HOST:PORT; None for an empty text, which takes back what the environment says."""
    host, _, port = text.rpartition(":")
    if not text:
        return None
    if not (host and port.isdecimal() and int(port) <= PORT_MAX):
        raise click.BadParameter(f"{text!r} is no address; write HOST:PORT, such as 127.0.0.1:9101")
    return host.removeprefix("[").removesuffix("]"), int(port)


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


def log_options(command: Command) -> Command:
    """Let the form and the level of log lines be chosen."""
    for option in (
        click.option(
            "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
        ),
        click.option(
            "--log", type=click.Choice(["console", "json"]), help="Default: console, or what the app has set up."
        ),
    ):
        command = option(command)
    return command
