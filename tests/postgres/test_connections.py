"""A session of the fleet: closed by whoever opened it, however that ends."""

import anyio

from fleet.postgres.database import AsyncConnection, Database


async def test_it_is_closed_also_where_its_user_is_cancelled_while_a_statement_is_under_way(database: Database) -> None:
    opened: list[AsyncConnection] = []
    began = anyio.Event()

    async def use() -> None:
        async with await database.connect("test") as mine:
            opened.append(mine)
            await mine.lock.acquire()  # as a statement does, and the end of the block waits for it
            began.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        await began.wait()
        group.cancel_scope.cancel()
    assert opened[0].closed
