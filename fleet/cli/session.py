"""The database that a command works on: how it is named, asked and told; and who does it."""

import asyncio
import getpass
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.cli.failures import ExitCode, Refused
from fleet.config import Settings, database_url
from fleet.errors import ConfigurationError

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
    try:
        database = Database(url, settings)
    except ConfigurationError:
        # libpq quotes the part that it stumbled over, which may be half of a password.
        raise _unreadable() from None
    if _is_misread(database):
        raise _unreadable()
    return database


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
    """Run one verb on a connection of its own."""

    async def run() -> T:
        async with await database.connect(_ROLE) as connection:
            return await verb(connection)

    return asyncio.run(run())


def actor() -> str:
    """Name who runs this command, for the history of what was done."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user needs no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _is_misread(database: "Database") -> bool:
    """Tell whether a password with a bare @ or / was cut in two: its rest would be shown as the name of a host."""
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(database.conninfo(_ROLE))
    host, port = str(parts.get("host") or ""), str(parts.get("port") or "")
    return "@" in host[1:] or not all(number.isdigit() for number in port.split(",") if number)


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        "the database URL cannot be read (it is not shown, because it may hold a password): write "
        "postgresql://user:password@host:5432/database, with @ : / % in a password as %40 %3A %2F %25"
    )
