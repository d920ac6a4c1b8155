"""How fast tasks are written, in the ways that a service writes them; and bare statements that write the same rows.

Orders: url, system (`fleet` or `bare`), singles (rows of every way but the last), many (rows of that).
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import uvloop

from fleet.bench.sides import ceiling
from fleet.bench.tasks import PAD, work

BARE = "INSERT INTO ceiling.task (name, args) VALUES ('work', %s::jsonb)"

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Write = Callable[[Connection, range], Awaitable[object]]


async def single(connection: Connection, numbers: range) -> None:
    """Submit one task after another, each on its own."""
    for i in numbers:
        await work.submit(i, PAD)


async def in_transaction(connection: Connection, numbers: range) -> None:
    """Submit in a transaction of the caller's."""
    async with connection.transaction():
        task = work.options(tx=connection)
        for i in numbers:
            await task.submit(i, PAD)


async def many(connection: Connection, numbers: range) -> None:
    """Submit all at once."""
    await work.app.submit_many(work, ({"i": i, "pad": PAD} for i in numbers))


async def bare_single(connection: Connection, numbers: range) -> None:
    """Insert one row after another, each on its own."""
    for i in numbers:
        await connection.execute(BARE, (f'{{"i":{i},"pad":"{PAD}"}}',), prepare=True)


async def bare_in_transaction(connection: Connection, numbers: range) -> None:
    """Insert in a transaction."""
    async with connection.transaction():
        await bare_single(connection, numbers)


async def rate(write: Write, connection: Connection, rows: int, at_once: int) -> float:
    """Return rows per second, where one call writes so many."""
    await write(connection, range(1))  # connect, prepare
    began = time.perf_counter()
    for first in range(0, rows, at_once):
        await write(connection, range(first, min(first + at_once, rows)))
    return rows / (time.perf_counter() - began)


async def fleet(url: str, singles: int, rows: int) -> dict[str, float]:
    """Submit to fleet."""
    work.app.database_url = url
    async with work.app, await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        return await _each_way(connection, single, in_transaction, singles) | {
            "many_rows_per_second": await rate(many, connection, rows, rows)
        }


async def bare(url: str, singles: int, rows: int) -> dict[str, float]:
    """Write the same rows into the bare loop's table."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(ceiling.SCHEMA)
        figures = await _each_way(connection, bare_single, bare_in_transaction, singles)
    return figures | {"many_rows_per_second": await asyncio.to_thread(ceiling.fill, url, rows)}


async def _each_way(connection: Connection, one: Write, transaction: Write, rows: int) -> dict[str, float]:
    return {
        "single_rows_per_second": await rate(one, connection, rows, rows),
        "commit_per_1_rows_per_second": await rate(transaction, connection, rows, 1),
        "commit_per_100_rows_per_second": await rate(transaction, connection, rows, 100),
    }


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    system = {"fleet": fleet, "bare": bare}[orders["system"]]
    print(json.dumps(uvloop.run(system(orders["url"], orders["singles"], orders["many"]))))
