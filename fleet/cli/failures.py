"""What a command ends with when it cannot do what it was asked: one sentence and an exit code. The only place for both."""

import traceback
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING

import click

from fleet.errors import (
    ConfigurationError,
    DatabaseUnreachable,
    FleetError,
    IdempotencyConflict,
    InvalidArguments,
    NotFound,
    SchemaMismatch,
    UpgradeRefused,
    first_line,
)
from fleet.payload import clean_text
from fleet.redaction import redacted

if TYPE_CHECKING:
    import psycopg

_MESSAGE_BYTES = 8192
_UNDEFINED = {
    "3F000",
    "42P01",
    "42703",
    "42704",
    "42883",
}  # a schema, table, column, type or function that is not there
_IN_TIME = {"57014", "55P03", "40P01", "25P03"}  # cancelled by a time-out, or by somebody else's lock
_PRIVILEGE = "42501"


class ExitCode(IntEnum):
    """The exit codes of every command; documented in `fleet --help`."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    DATABASE = 3
    SCHEMA = 4
    NOT_FOUND = 5
    CONFLICT = 6
    INTERRUPTED = 130


class Refused(Exception):
    """The end of a command: a sentence for stderr, made fit for a terminal, and the exit code."""

    def __init__(self, message: str, code: ExitCode) -> None:
        self.message = redacted(clean_text(message, _MESSAGE_BYTES))
        super().__init__(self.message)
        self.code = code


def refused(error: BaseException) -> Refused | None:
    """Return what to tell a user about this exception; None where it is a defect, which deserves its traceback."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, FleetError):
        return Refused(str(error), _code(error))
    if isinstance(error, UnicodeEncodeError):
        return Refused("an argument is not valid UTF-8", ExitCode.USAGE)
    return _of_database(error)


def tell_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a defect, as Python does, but without secrets."""
    click.echo(redacted("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def _code(error: FleetError) -> ExitCode:
    match error:
        case ConfigurationError() | InvalidArguments():
            return ExitCode.USAGE
        case DatabaseUnreachable():
            return ExitCode.DATABASE
        case SchemaMismatch():
            return ExitCode.SCHEMA
        case NotFound():
            return ExitCode.NOT_FOUND
        case IdempotencyConflict() | UpgradeRefused():
            return ExitCode.CONFLICT
    return ExitCode.CHECK_FAILED


def _of_database(error: BaseException) -> Refused | None:
    import psycopg
    from sqlalchemy.exc import DBAPIError

    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    return _of_driver(error) if isinstance(error, psycopg.Error) else None


def _of_driver(error: "psycopg.Error") -> Refused | None:
    import psycopg

    from fleet.postgres.database import full_of, what_to_check

    state = error.sqlstate or ""
    why = first_line(error)
    if state in _UNDEFINED:
        return Refused(f"the schema does not fit this code: {why}. Run `fleet db upgrade`.", ExitCode.SCHEMA)
    if state in _IN_TIME:
        return Refused(f"the database did not answer in time: {why}. Try again.", ExitCode.DATABASE)
    if state == _PRIVILEGE:
        return Refused(f"the database does not let this user do it: {why}.", ExitCode.DATABASE)
    if (full := full_of(error)) is not None:
        return Refused(full, ExitCode.DATABASE)
    if isinstance(error, psycopg.OperationalError):
        return Refused(f"the database cannot be reached: {why}. {what_to_check(error)}", ExitCode.DATABASE)
    return None
