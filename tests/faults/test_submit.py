"""Submissions whose answers are lost on the way: asked again with the same key they are the same task, and one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
import sqlalchemy.exc
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from fleet import Fleet, Settings, Task
from fleet.errors import DatabaseUnreachable, IdempotencyConflict, OutcomeUnknown
from fleet.postgres.database import AsyncConnection
from fleet.testing.link import When
from fleet.testing.proxy import Proxy
from tests.http.running import Running

SUBMISSION = r"INSERT INTO fleet\.task"
ADD = {"name": "add", "args": {"a": 1}}
KEY = {"Idempotency-Key": "k"}
ORDER = "INSERT INTO orders VALUES (7) ON CONFLICT DO NOTHING"
WHENS = pytest.mark.parametrize("when", ["before", "after"])

Work = Task[[int], int]
PlaceOrder = Callable[[str, Work], Awaitable[UUID]]


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
async def app(proxy: Proxy, settings: Settings) -> AsyncIterator[Fleet]:
    """An app whose submissions go through the proxy."""
    async with Fleet(proxy.url, settings=settings) as app:
        yield app


@pytest.fixture
def work(app: Fleet) -> Work:
    @app.task
    async def work(number: int) -> int:
        return number

    return work


async def tasks(watcher: AsyncConnection) -> list[str]:
    return [str(row[0]) for row in await (await watcher.execute("SELECT id FROM fleet.task")).fetchall()]


@pytest.mark.fault("Submit", "a retry after a lost response")
@pytest.mark.fault("Submit", "the same key with another payload")
@WHENS
async def test_over_http_the_retry_of_a_request_whose_outcome_is_unknown_finds_the_task_or_makes_it(
    proxy: Proxy, watcher: AsyncConnection, tmp_path: Path, when: When
) -> None:
    with Running(tmp_path, proxy.url) as api:
        cut = proxy.cut(SUBMISSION, when)
        lost = await asyncio.to_thread(api.call, "POST", "/tasks", json=ADD, headers=KEY)
        assert (lost.status_code, lost.json()["code"]) == (503, "outcome_unknown")
        assert cut.happened == 1
        written = await tasks(watcher)
        assert len(written) == (when == "after")
        again = await asyncio.to_thread(api.call, "POST", "/tasks", json=ADD, headers=KEY)
        assert (again.status_code, again.json()["created"]) == (202, when == "before")
        other = ADD | {"args": {"a": 2}}
        refused = await asyncio.to_thread(api.call, "POST", "/tasks", json=other, headers=KEY)
        assert refused.status_code == 422, refused.text
        assert await tasks(watcher) == (written or [again.json()["id"]])


@pytest.mark.fault("Submit", "50 identical submits at once")
@pytest.mark.fault("Submit", "a retry after a lost response")
async def test_fifty_identical_submits_at_once_of_which_many_lose_their_answers_and_try_again_make_one_task(
    proxy: Proxy, watcher: AsyncConnection, work: Work
) -> None:
    losses = []

    async def persist() -> UUID:
        while True:
            try:
                return (await work.options(idempotency_key="k").submit(1)).id
            except DatabaseUnreachable as error:
                losses.append(error)

    cut = proxy.cut(SUBMISSION, "after", count=20)
    ids = await asyncio.gather(*(persist() for _ in range(50)))
    assert cut.happened == 20
    assert sum(isinstance(error, OutcomeUnknown) for error in losses) >= 20
    assert {str(task) for task in ids} == set(await tasks(watcher))
    assert len(set(ids)) == 1


@pytest.mark.fault("Submit", "the same key with another payload")
async def test_another_request_with_a_key_whose_answer_was_lost_is_refused_and_told_whose_it_is(
    proxy: Proxy, watcher: AsyncConnection, work: Work
) -> None:
    keyed = work.options(idempotency_key="k")
    cut = proxy.cut(SUBMISSION, "after")
    with pytest.raises(OutcomeUnknown):
        await keyed.submit(1)
    assert cut.happened == 1
    with pytest.raises(IdempotencyConflict) as refused:
        await keyed.submit(2)
    assert [str(refused.value.task_id)] == await tasks(watcher)
    assert str((await keyed.submit(1)).id) == str(refused.value.task_id)


async def order_by_psycopg(url: str, work: Work) -> UUID:
    """Write an order and its task in one transaction."""
    async with await psycopg.AsyncConnection.connect(url) as mine, mine.transaction():
        await mine.execute(ORDER)
        ref = await work.options(tx=mine, idempotency_key="order 7").submit(7)
    return ref.id


async def order_by_sqlalchemy(url: str, work: Work) -> UUID:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        async with AsyncSession(engine) as mine:
            await mine.execute(text(ORDER))
            ref = await work.options(tx=mine, idempotency_key="order 7").submit(7)
            await mine.commit()
            return ref.id
    finally:
        await engine.dispose()


@pytest.mark.fault("Submit", "the reply to the caller's own COMMIT is lost")
@WHENS
@pytest.mark.parametrize("place_order", [order_by_psycopg, order_by_sqlalchemy])
async def test_the_callers_rows_and_its_task_are_both_there_or_neither_and_the_same_again_completes_them_once(
    proxy: Proxy, watcher: AsyncConnection, app: Fleet, work: Work, place_order: PlaceOrder, when: When
) -> None:
    await watcher.execute("CREATE TABLE orders (number int PRIMARY KEY)")
    cut = proxy.cut(r"^\s*COMMIT", when)
    with pytest.raises((psycopg.OperationalError, sqlalchemy.exc.OperationalError)):
        await place_order(proxy.url, work)
    assert cut.happened == 1

    orders = await (await watcher.execute("SELECT * FROM orders")).fetchall()
    written = await tasks(watcher)
    assert (len(orders), len(written)) == (2 * (when == "after",))

    task = await place_order(proxy.url, work)
    assert await tasks(watcher) == (written or [str(task)])
    assert await (await watcher.execute("SELECT * FROM orders")).fetchall() == [(7,)]
    async with app.worker():
        assert await (await work.options(idempotency_key="order 7").submit(7)).result(30) == 7
