"""A session of the fleet: closed by whoever opened it, however that ends."""

import anyio

from fleet.postgres.database import AsyncConnection, Database
from tests.support import eventually


async def test_it_is_closed_also_where_its_user_is_cancelled(database: Database, connection: AsyncConnection) -> None:
    opened: list[AsyncConnection] = []

    async def use() -> None:
        async with await database.connect("test") as mine:
            opened.append(mine)
            await mine.execute("SELECT pg_sleep(60)")

    async def is_asleep() -> bool:
        found = await connection.execute("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
        return bool(await found.fetchall())

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        await eventually(is_asleep)
        group.cancel_scope.cancel()
    assert opened[0].closed
