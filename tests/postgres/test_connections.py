"""A session of the fleet: closed by whoever opened it, however that ends."""

import anyio

from fleet.postgres.database import Database


async def test_it_is_closed_also_where_its_user_is_cancelled(database: Database) -> None:
    with anyio.CancelScope() as scope:
        async with await database.connect("test") as connection:
            scope.cancel()
            await connection.execute("SELECT pg_sleep(60)")
    assert connection.closed
