"""`fleet queue`: list, pause and resume queues, and say how long they keep."""

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from fleet.cli.options import database_option, duration, output_option, queue_name
from fleet.cli.output import Columns, Row, print_json, print_rows, say
from fleet.cli.session import act, actor, ask, open_database

if TYPE_CHECKING:
    from fleet.postgres.database import AsyncConnection


def _queued_words(row: Row) -> str:
    from fleet.postgres.inspect import QUEUED_MAX

    return f"{row['queued']}{'+' if row['queued'] >= QUEUED_MAX else ''}"


def _retention_words(row: Row) -> str:
    seconds = row["retention_seconds"]
    return "default" if seconds is None else f"{seconds / 86400:.4g} d"


_COLUMNS: Columns = {
    "QUEUE": "name",
    "PAUSED": "paused",
    "WORKERS": "workers",
    "QUEUED": _queued_words,
    "RETENTION": _retention_words,
}


@click.group()
def queue() -> None:
    """List, pause and resume queues, and say how long they keep finished tasks."""


@queue.command("list")
@output_option
@database_option
def list_(*, output: str, database_url: str | None) -> None:
    """List the queues, who serves them, and how many tasks wait (counted up to 10,000)."""
    from fleet.postgres import inspect

    rows = ask(open_database(database_url), inspect.queues())
    print_rows(rows, _COLUMNS, output, empty="no queue is known yet: no worker has run and no task waits")


@queue.command()
@click.argument("name", type=queue_name)
@output_option
@database_option
def pause(*, name: str, output: str, database_url: str | None) -> None:
    """Let nobody start tasks of this queue. What runs goes on. A name that no queue has is refused."""
    from fleet.postgres import queue as queues

    async def verb(connection: "AsyncConnection") -> bool:
        return await queues.pause(connection, name, actor())

    changed = act(open_database(database_url), verb)
    say(f"queue {name!r} is paused" if changed else f"queue {name!r} was paused already")
    _print_outcome(name, output, paused=True, changed=changed)


@queue.command()
@click.argument("name", type=queue_name)
@output_option
@database_option
def resume(*, name: str, output: str, database_url: str | None) -> None:
    """Let tasks of this queue be started again."""
    from fleet.postgres import queue as queues

    async def verb(connection: "AsyncConnection") -> bool:
        return await queues.resume(connection, name, actor())

    changed = act(open_database(database_url), verb)
    say(f"queue {name!r} goes on" if changed else f"queue {name!r} was not paused")
    _print_outcome(name, output, paused=False, changed=changed)


@queue.command()
@click.argument("name", type=queue_name)
@click.argument("retention", type=duration, required=False, metavar="[DURATION]")
@click.option("--default", is_flag=True, help="As the workers' settings say (FLEET_RETENTION, 7 days).")
@output_option
@database_option
def retain(*, name: str, retention: timedelta | None, default: bool, output: str, database_url: str | None) -> None:
    """Keep finished tasks of this queue for so long, such as 30d, and not as long as the others'.

    Dead letters are kept until somebody judges them.
    """
    from fleet.postgres import queue as queues

    if (retention is None) is not default:
        raise click.UsageError("give either a duration, such as 30d, or --default")

    async def verb(connection: "AsyncConnection") -> bool:
        return await queues.retain(connection, name, retention, actor())

    changed = act(open_database(database_url), verb)
    seconds = None if retention is None else retention.total_seconds()
    words = _retention_words({"retention_seconds": seconds})
    say(f"queue {name!r} {'keeps' if changed else 'kept already'} its finished tasks: {words}")
    if output == "json":
        print_json({"name": name, "retention_seconds": seconds, "changed": changed})


def _print_outcome(name: str, output: str, *, paused: bool, changed: bool) -> None:
    if output == "json":
        print_json({"name": name, "paused": paused, "changed": changed})
