"""Run a statement inside a transaction that the caller has begun, with psycopg or SQLAlchemy, sync or async."""

from typing import Any

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy import Connection as AlchemyConnection
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection as AlchemyAsyncConnection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from fleet.errors import ConfigurationError
from fleet.postgres.database import Row, Statement

Transaction = psycopg.Connection[Any] | Session | AlchemyConnection
AsyncTransaction = psycopg.AsyncConnection[Any] | AsyncSession | AlchemyAsyncConnection


async def run_in(transaction: AsyncTransaction | Transaction, statement: Statement, values: dict[str, Any]) -> Row:
    """Run a statement of one row in an async caller's transaction. Nothing is committed here."""
    match transaction:
        case psycopg.AsyncConnection():
            async with transaction.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(statement.native, values)
                return _one(await cursor.fetchone())
        case AsyncSession() | AlchemyAsyncConnection():
            return tuple((await transaction.execute(_text(statement), values)).one())
        case psycopg.Connection() | Session() | AlchemyConnection():
            raise ConfigurationError("this transaction is synchronous: use submit_sync")
    raise _unknown(transaction)


def run_in_sync(transaction: AsyncTransaction | Transaction, statement: Statement, values: dict[str, Any]) -> Row:
    """The same in a synchronous caller's transaction."""
    match transaction:
        case psycopg.Connection():
            with transaction.cursor(row_factory=tuple_row) as cursor:
                cursor.execute(statement.native, values)
                return _one(cursor.fetchone())
        case Session() | AlchemyConnection():
            return tuple(transaction.execute(_text(statement), values).one())
        case psycopg.AsyncConnection() | AsyncSession() | AlchemyAsyncConnection():
            raise ConfigurationError("this transaction is asynchronous: use `await submit(…)`")
    raise _unknown(transaction)


def _text(statement: Statement) -> TextClause:
    """SQLAlchemy takes no parameter that a cast follows, unless the cast's colons are escaped."""
    return text(statement.text.replace("::", r"\:\:"))


def _one(row: Row | None) -> Row:
    assert row is not None  # noqa: S101 - the statements answer one row
    return row


def _unknown(transaction: object) -> ConfigurationError:
    return ConfigurationError(
        f"tx= takes a session or connection of SQLAlchemy or psycopg, not {type(transaction).__name__}"
    )
