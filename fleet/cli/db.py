"""`fleet db`: create, check and print the schema."""

from contextlib import suppress

import click

from fleet.cli.options import database_option, output_option
from fleet.cli.output import print_json, say
from fleet.cli.session import open_database


@click.group()
def db() -> None:
    """Create and check the schema in the database."""


@db.command()
@output_option
@database_option
def upgrade(*, output: str, database_url: str | None) -> None:
    """Bring the schema up to date. Safe to run again, and from many places at once."""
    from alembic.util import CommandError

    from fleet.postgres import migrate

    database = open_database(database_url)
    say(f"upgrading {database.address}")
    with suppress(CommandError):  # a revision that only a later version knows: the check says so
        migrate.upgrade(database)
    _print_revision(migrate.check(database), output)


@db.command()
@output_option
@database_option
def check(*, output: str, database_url: str | None) -> None:
    """Tell whether the schema is the one that this version needs; exit code 4 where it is not."""
    from fleet.postgres import migrate

    _print_revision(migrate.check(open_database(database_url)), output)


@db.command()
def sql() -> None:
    """Print the SQL of the whole schema. Needs no database."""
    from fleet.postgres import migrate

    click.echo(migrate.statements(), nl=False)


def _print_revision(revision: str, output: str) -> None:
    if output == "json":
        print_json({"revision": revision})
    else:
        say(f"the schema fits: revision {revision}")
