"""The database may be away at any time: what it does not let be done is tried again."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from fleet.errors import DatabaseUnreachable

RETRY_SECONDS = 0.2
T = TypeVar("T")


async def persist(step: Callable[[], Awaitable[T]]) -> T:
    """Try until it is done, and tell of each try that was in vain."""
    while True:
        try:
            return await step()
        except (DatabaseUnreachable, psycopg.Error, SQLAlchemyError) as error:
            complain(error)
            await asyncio.sleep(RETRY_SECONDS)


def complain(error: BaseException) -> None:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stderr.flush()
