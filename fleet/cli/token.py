"""`fleet token`: make, list and revoke tokens for the HTTP API. A secret is printed once, and kept nowhere."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import click

from fleet.cli.failures import ExitCode, Refused
from fleet.cli.options import database_option, duration, limit_option, output_option
from fleet.cli.output import Columns, Row, cell, print_json, print_rows, say
from fleet.cli.session import act, actor, ask, open_database
from fleet.tokens import Scope, checked_name, hash_of, new_secret

if TYPE_CHECKING:
    from fleet.postgres.database import AsyncConnection
    from fleet.postgres.token import Made

_YEARS_100 = timedelta(days=36_500)


def _state(row: Row) -> str:
    if row["revoked_at"] is not None:
        return "revoked"
    return "expired" if row["expires_at"] is not None and row["expires_at"] <= datetime.now(UTC) else "good"


_COLUMNS: Columns = {
    "TOKEN": "id",
    "NAME": "name",
    "SCOPES": "scopes",
    "STATE": _state,
    "CREATED": "created_at",
    "LAST USED": "last_used_at",
    "EXPIRES": "expires_at",
}


@click.group()
def token() -> None:
    """Make, list and revoke tokens for the HTTP API."""


@token.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", type=click.Choice([scope.value for scope in Scope]), multiple=True, required=True,
    help="What it may be used for; may be repeated. None includes another.",
)  # fmt: skip
@click.option("--expires-in", type=duration, metavar="DURATION", help="Such as 90d. Default: it does not expire.")
@output_option
@database_option
def create(
    *, name: str, scopes: Sequence[str], expires_in: timedelta | None, output: str, database_url: str | None
) -> None:
    """Make a token, and print its secret on stdout: this once, for only a hash of it is kept.

    `read` is for asking (it shows what tasks were given and returned), `submit` for submitting, `operate` for cancelling,
    judging dead letters, and pausing and resuming queues.
    """
    from uuid_utils.compat import uuid7

    from fleet.postgres import token as tokens

    if expires_in is not None and not timedelta(0) < expires_in <= _YEARS_100:
        raise click.BadParameter("it must be more than nothing and at most 36500d", param_hint="--expires-in")
    token_id, secret, scopes = uuid7(), new_secret(), sorted(set(scopes), key=[*Scope].index)
    called = checked_name(name)

    async def verb(connection: "AsyncConnection") -> "Made | None":
        return await tokens.create(
            connection, token_id, called, hash_=hash_of(secret), scopes=scopes, expires_in=expires_in, actor=actor()
        )

    made = act(open_database(database_url), verb)
    if made is None:
        raise Refused(f"there is a token {name!r}: revoke it first, or use another name", ExitCode.CONFLICT)
    if output == "json":
        told = {"id": token_id, "name": name, "scopes": scopes, "expires_at": made.expires_at, "secret": secret}
        print_json(told)
        return
    until = "does not expire" if made.expires_at is None else f"expires at {cell(made.expires_at)}"
    say(f"token {name!r} may {', '.join(scopes)} and {until}. This is the only time that its secret is shown:")
    click.echo(secret)


@token.command("list")
@limit_option
@output_option
@database_option
def list_(*, limit: int, output: str, database_url: str | None) -> None:
    """List tokens, the youngest first, those too that were revoked or have expired. LAST USED is kept to the minute."""
    from fleet.postgres import token as tokens

    print_rows(ask(open_database(database_url), tokens.tokens(limit)), _COLUMNS, output, empty="there is no token")


@token.command()
@click.argument("which", metavar="ID|NAME")
@output_option
@database_option
def revoke(*, which: str, output: str, database_url: str | None) -> None:
    """Take a token back: within 5 s no server lets it in any more. Its name may be used again."""
    from fleet.postgres import token as tokens

    token_id = _id_of(which)

    async def verb(connection: "AsyncConnection") -> tuple[UUID, bool] | None:
        name = which if token_id is None else None
        return await tokens.revoke(connection, token_id=token_id, name=name, actor=actor())

    revoked = act(open_database(database_url), verb)
    if revoked is None:
        raise Refused(f"there is no token {which!r}; see `fleet token list`", ExitCode.NOT_FOUND)
    found, changed = revoked
    say(f"token {which!r} is revoked" if changed else f"token {which!r} had been revoked before")
    if output == "json":
        print_json({"id": found, "changed": changed})


def _id_of(which: str) -> UUID | None:
    try:
        return UUID(which)
    except ValueError:
        return None
