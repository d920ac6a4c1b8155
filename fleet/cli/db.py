"""`fleet db`: create, check, print and weigh the schema, and say who may do what in it."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleet.cli.options import database_option, output_option
from fleet.cli.output import Columns, Row, cell, print_json, print_rows, say
from fleet.cli.session import act, open_database

if TYPE_CHECKING:
    from fleet.postgres.database import AsyncConnection

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def db() -> None:
    """Create and check the schema in the database."""


@db.command()
@click.option("--force", is_flag=True, help="Also over running workers that do not work with the new schema.")
@output_option
@database_option
def upgrade(*, force: bool, output: str, database_url: str | None) -> None:
    """Bring the schema up to date. Safe to run again, and from many places at once.

    Exit code 6, and nothing changed, while a worker runs whose version does not work with the new schema.
    """
    from alembic.util import CommandError

    from fleet.postgres import migrate

    database = open_database(database_url)
    say(f"upgrading {database.address}")
    with suppress(CommandError):  # a revision that only a later version knows: the check says so
        for each in migrate.upgrade(database, force=force):
            say(f"went on over {each}: restart it with a version that works with this schema")
    _print_revision(migrate.check(database), output)


@db.command()
@output_option
@database_option
def check(*, output: str, database_url: str | None) -> None:
    """Tell whether this version works with the schema; exit code 4 where it does not."""
    from fleet.postgres import migrate

    _print_revision(migrate.check(open_database(database_url)), output)


@db.command()
def sql() -> None:
    """Print the SQL of the whole schema. Needs no database."""
    from fleet.postgres import migrate

    click.echo(migrate.statements(), nl=False)


def _role_option(role: str, words: str) -> Callable[[Command], Command]:
    default = f"fleet_{role}"
    return click.option(
        f"--{role}", callback=_role_name, metavar="NAME", default=default, show_default=True, help=words
    )


def _role_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", value):
        raise click.BadParameter("a role's name has up to 63 letters, digits, _ and -, and begins with a letter or _")
    return value


@db.command()
@_role_option("owner", "Owns everything in the schema; nobody logs in as it.")
@_role_option("migrator", "Runs `fleet db upgrade`.")
@_role_option("worker", "Runs tasks, and submits them.")
@_role_option("api", "Submits, cancels and judges tasks, pauses queues.")
@_role_option("reader", "Looks on, but not at arguments and results.")
def grants(**names: str) -> None:
    """Print the SQL that makes a role for each job and gives it what it needs. Runs nothing, needs no database.

    An administrator runs it in the fleet's database, before the first `fleet db upgrade` and after every one.
    """
    from fleet.postgres.grants import Role, statements

    if len(set(names.values())) < len(names):
        raise click.UsageError("each role needs a name of its own")
    click.echo(statements({Role(role): name for role, name in names.items()}), nl=False)


@db.command()
@output_option
@database_option
def size(*, output: str, database_url: str | None) -> None:
    """Tell how large the tables are, and what could be pruned now.

    Rows are estimates: what vacuum and analyze have reckoned last. Only the oldest 100,000 tasks are looked at.
    """
    from dataclasses import asdict

    from fleet.postgres import size as sizes

    database = open_database(database_url)
    retention = database.settings.retention

    async def look(connection: "AsyncConnection") -> tuple[list[Row], sizes.Oldest]:
        tables = [asdict(each) for each in await sizes.tables(connection)]
        return list(tables), await sizes.oldest(connection, retention)

    tables, oldest = act(database, look)
    more = oldest.looked == sizes.LOOKED_MAX
    if output == "json":
        found = {"oldest_finished_at": oldest.finished_at, "prunable": oldest.prunable, "prunable_more": more}
        print_json({"tables": tables, "rows_are_estimates": True, "retention_seconds": retention, **found})
        return
    print_rows(tables, _SIZES, output, empty="")
    say(f"tasks that could be pruned now: {oldest.prunable}{' or more' if more else ''}")
    say(f"the oldest task that has ended did so at: {cell(oldest.finished_at)}")


def _bytes_of(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key] / 2**20:,.1f} MiB"


_SIZES: Columns = {
    "TABLE": "name",
    "ROWS (ESTIMATE)": lambda row: "?" if row["rows"] is None else f"{row['rows']:,}",
    "DEAD": lambda row: f"{row['dead']:,}",
    "DATA": _bytes_of("table_bytes"),
    "INDEXES": _bytes_of("index_bytes"),
    "TOAST": _bytes_of("toast_bytes"),
}


def _print_revision(revision: str, output: str) -> None:
    if output == "json":
        print_json({"revision": revision})
    else:
        say(f"the schema fits: revision {revision}")
