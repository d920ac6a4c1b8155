"""`tx=`: a task in the caller's own transaction exists if and only if that commits."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection as AlchemyAsyncConnection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fleet import Fleet, Task
from fleet.errors import ConfigurationError, IdempotencyConflict
from fleet.postgres.database import AsyncConnection


@pytest.fixture
def work(app: Fleet) -> "Task[[int], int]":
    @app.task
    async def work(number: int) -> int:
        return number

    return work


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    await engine.dispose()


@pytest.fixture
def engine_sync(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def roll_back(transaction: psycopg.Transaction | psycopg.AsyncTransaction) -> None:
    raise psycopg.Rollback(transaction)


async def numbers(connection: AsyncConnection) -> list[int]:
    cursor = await connection.execute("SELECT (args->>'number')::int FROM fleet.task ORDER BY 1")
    return [row[0] for row in await cursor.fetchall()]


@pytest.mark.fault("Submit", "the caller rolls back to a savepoint")
@pytest.mark.fault("Submit", "the caller's transaction rolls back")
@pytest.mark.fault("Submit", "the caller's transaction commits")
async def test_a_psycopg_transaction_decides(
    work: "Task[[int], int]", connection: AsyncConnection, other: AsyncConnection
) -> None:
    async with other.transaction():
        await work.options(tx=other).submit(1)
        assert await numbers(connection) == []
        async with other.transaction() as savepoint:
            await work.options(tx=other).submit(2)
            roll_back(savepoint)
    async with other.transaction() as whole:
        await work.options(tx=other).submit(3)
        roll_back(whole)
    assert await numbers(connection) == [1]


@pytest.mark.fault("Submit", "the caller rolls back to a savepoint")
@pytest.mark.fault("Submit", "the caller's transaction rolls back")
@pytest.mark.fault("Submit", "the caller's transaction commits")
async def test_a_synchronous_psycopg_transaction_decides(
    work: "Task[[int], int]", connection: AsyncConnection, database_url: str
) -> None:
    with psycopg.connect(database_url) as mine:
        work.options(tx=mine).submit_sync(1)
        with mine.transaction() as savepoint:
            work.options(tx=mine).submit_sync(2)
            roll_back(savepoint)
        mine.commit()
        work.options(tx=mine).submit_sync(3)
        mine.rollback()
    assert await numbers(connection) == [1]


@pytest.mark.fault("Submit", "the caller rolls back to a savepoint")
@pytest.mark.fault("Submit", "the caller's transaction rolls back")
@pytest.mark.fault("Submit", "the caller's transaction commits")
@pytest.mark.parametrize("kind", [AsyncSession, AlchemyAsyncConnection])
async def test_an_async_sqlalchemy_transaction_decides(
    work: "Task[[int], int]", connection: AsyncConnection, engine: AsyncEngine, kind: type
) -> None:
    async with AsyncSession(engine) if kind is AsyncSession else engine.connect() as mine:
        await mine.execute(text("CREATE TEMPORARY TABLE mine (number int)"))
        await work.options(tx=mine).submit(1)
        async with mine.begin_nested() as savepoint:
            await work.options(tx=mine).submit(2)
            await savepoint.rollback()
        assert await numbers(connection) == []
        await mine.commit()
        await work.options(tx=mine).submit(3)
        await mine.rollback()
    assert await numbers(connection) == [1]


@pytest.mark.fault("Submit", "the caller rolls back to a savepoint")
@pytest.mark.fault("Submit", "the caller's transaction rolls back")
@pytest.mark.fault("Submit", "the caller's transaction commits")
@pytest.mark.parametrize("kind", [Session, Connection])
async def test_a_sqlalchemy_transaction_decides(
    work: "Task[[int], int]", connection: AsyncConnection, engine_sync: Engine, kind: type
) -> None:
    with Session(engine_sync) if kind is Session else engine_sync.connect() as mine:
        work.options(tx=mine).submit_sync(1)
        with mine.begin_nested() as savepoint:
            work.options(tx=mine).submit_sync(2)
            savepoint.rollback()
        assert await numbers(connection) == []
        mine.commit()
        work.options(tx=mine).submit_sync(3)
        mine.rollback()
    assert await numbers(connection) == [1]


async def test_a_task_with_options_and_hard_characters_goes_through_sqlalchemy_unchanged(
    app: Fleet, engine: AsyncEngine
) -> None:
    hard = "a :name, a %s, a %(x)s, a {brace}, a \\ and a ' and a ::cast"

    @app.task
    async def echo(said: str) -> str:
        return said

    async with AsyncSession(engine) as session:
        ref = await echo.options(tx=session, delay=0.01, timeout=60, idempotency_key="k", priority=1).submit(hard)
        await session.commit()
    async with app.worker():
        assert await ref.result(10) == hard


async def test_a_key_in_a_transaction_that_rolls_back_is_free_again(
    work: "Task[[int], int]", connection: AsyncConnection, other: AsyncConnection
) -> None:
    async with other.transaction() as whole:
        first = await work.options(tx=other, idempotency_key="k").submit(1)
        roll_back(whole)
    second = await work.options(idempotency_key="k").submit(2)
    assert second.id != first.id
    async with other.transaction():
        with pytest.raises(IdempotencyConflict):
            await work.options(tx=other, idempotency_key="k").submit(3)
    assert await numbers(connection) == [2]


async def test_a_transaction_of_the_wrong_kind_is_refused(
    work: "Task[[int], int]", engine_sync: Engine, other: AsyncConnection
) -> None:
    with Session(engine_sync) as session, pytest.raises(ConfigurationError, match="use submit_sync"):
        await work.options(tx=session).submit(1)
    with pytest.raises(ConfigurationError, match="await submit"):
        work.options(tx=other).submit_sync(1)
    with pytest.raises(ConfigurationError, match="not str"):
        await work.options(tx="a string").submit(1)
