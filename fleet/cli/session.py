"""The database that a command works on: how it is named, asked and told; and who does it."""

import asyncio
import getpass
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.cli.failures import ExitCode, Refused
from fleet.config import Settings, database_url, listen_url

if TYPE_CHECKING:
    from sqlalchemy import Select

    from fleet.app import Fleet
    from fleet.postgres.database import AsyncConnection, Database

T = TypeVar("T")
_ROLE = "cli"


def open_database(given: str | None, settings: Settings | None = None, *, otherwise: str | None = None) -> "Database":
    """Return the database that was named; nothing connects yet. Raises Refused where nobody named one."""
    from fleet.postgres.database import Database

    url = database_url(os.environ, given, otherwise)
    if url is None:
        raise Refused(
            "no database was named: give --database-url postgresql://user@host/database, or set FLEET_DATABASE_URL, "
            "or FLEET_DATABASE_URL_FILE to a file that holds it, or PGHOST and PGDATABASE",
            ExitCode.DATABASE,
        )
    settings = settings or Settings.from_environment(os.environ)
    return Database(url, settings, listen_url=listen_url(os.environ))


def open_app(app: "Fleet", given: str | None, **options: Any) -> "Database":
    """Point an app to its database and settings, and return the database.

    Options go before the environment, and that before what the app says of itself: who runs a program knows where.
    """
    settings = app.settings.overridden(os.environ, **options)
    database = open_database(given, settings, otherwise=app.database_url)
    app.use(database, settings)
    return database


def ask(database: "Database", question: "Select[Any]") -> list[dict[str, Any]]:
    """Run one question and return its rows by column."""
    with database.engine(_ROLE).connect() as connection:
        return [dict(row) for row in connection.execute(question).mappings()]


def act(database: "Database", verb: Callable[["AsyncConnection"], Awaitable[T]]) -> T:
    """Run one verb on a connection of its own. Raises SchemaMismatch before it where the schema does not fit."""
    from fleet.postgres import fit

    async def run() -> T:
        async with await database.connect(_ROLE) as connection:
            await fit.demand(connection)
            return await verb(connection)

    return asyncio.run(run())


def actor() -> str:
    """Name who runs this command, for the history of what was done."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user needs no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
