"""Drained mode: a real worker until nothing due is left; and what was submitted, asserted in words."""

import asyncio
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy.orm import Session

from fleet import Context, Fleet, Retry
from fleet.config import Settings
from fleet.postgres.database import Database
from fleet.task import Errored, State
from fleet.testing import Pointed, assert_submitted, drained, submitted


@pytest.fixture
def app(database_url: str) -> Fleet:
    return Fleet(database_url, settings=Settings(ttl=timedelta(seconds=2), slots=4))


async def test_all_that_is_due_runs_and_what_it_submits_too(app: Fleet) -> None:
    @app.task
    async def inner(number: int) -> int:
        return number

    @app.task
    async def outer() -> None:
        await inner.submit(number=1)
        await inner.submit(number=2)

    await outer.submit()
    ran = await drained(app)
    assert sorted(each.name for each in ran) == ["inner", "inner", "outer"]
    assert sorted(each.result for each in ran if each.name == "inner") == [1, 2]
    assert {each.state for each in ran} == {State.SUCCEEDED}
    assert await drained(app) == []


async def test_each_attempt_is_told_with_its_error_and_where_the_task_is_then(app: Fleet) -> None:
    @app.task(max_attempts=2)
    def charge(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise Retry("the bank said: come back", after=0.1)
        return "paid"

    await charge.submit()
    first, second = await drained(app)
    assert (first.attempt, first.state, second.state, second.result) == (1, State.QUEUED, State.SUCCEEDED, "paid")
    assert "the bank said" in first.error
    assert isinstance(first.outcome, Errored)


async def test_what_is_due_later_is_left_where_it_is(app: Fleet) -> None:
    @app.task
    def later() -> None: ...

    ref = await later.options(delay=5).submit()
    assert await drained(app) == []
    assert await ref.state() is State.QUEUED
    assert len(await drained(app, due_within=10)) == 1
    await app.close()


async def test_a_handler_that_does_not_end_is_named_by_a_time_out(app: Fleet) -> None:
    @app.task(idempotent=True)
    async def endless() -> None:
        await asyncio.Event().wait()

    await endless.submit()
    with pytest.raises(TimeoutError, match="1 tasks are due or still run"):
        await drained(app, seconds=0.2)


async def test_what_was_submitted_is_found_by_some_of_its_arguments(app: Fleet) -> None:
    @app.task
    def charge(order: int, note: str = "") -> None: ...

    ref = await charge.submit(order=7, note="by hand")
    await charge.submit(order=8)
    await app.close()
    assert assert_submitted(app, charge, order=7).id == ref.id
    assert assert_submitted(app, charge, order=7, note="by hand").queue == "default"
    assert [task.arguments["order"] for task in submitted(app, charge)] == [7, 8]


async def test_a_failed_assertion_lists_what_there_was_instead(app: Fleet) -> None:
    @app.task
    def charge(order: int) -> None: ...

    @app.task
    def count(text: str) -> None: ...

    with pytest.raises(AssertionError, match=r"no task charge\(order=7\) was submitted, and no other task either"):
        assert_submitted(app, charge, order=7)
    await count.submit(text="x")
    with pytest.raises(AssertionError, match=r"no other charge; there were: 1 of count"):
        assert_submitted(app, charge, order=7)
    await charge.submit(order=8)
    with pytest.raises(AssertionError, match=r"charge\(order=8\) in queue default, QUEUED"):
        assert_submitted(app, charge, order=7)
    with pytest.raises(TypeError, match="charge has no argument ordre"):
        assert_submitted(app, charge, ordre=7)
    await app.close()


def test_a_transaction_sees_what_it_has_not_committed(app: Fleet, database_url: str, database: Database) -> None:
    @app.task
    def charge(order: int) -> None: ...

    with psycopg.connect(database_url) as connection:
        charge.options(tx=connection).submit_sync(order=7)
        assert_submitted(connection, charge, order=7)
        assert submitted(app, charge) == []
        connection.rollback()
    with Session(database.engine("test")) as session:
        charge.options(tx=session).submit_sync(order=8)
        assert_submitted(session, charge, order=8)
        assert submitted(app, charge) == []
    assert submitted(app, charge) == []


def test_an_async_connection_is_refused_with_the_way_out(app: Fleet) -> None:
    @app.task
    def charge(order: int) -> None: ...

    with pytest.raises(TypeError, match="run_sync"):
        assert_submitted(object(), charge, order=7)  # type: ignore[arg-type]


async def test_an_app_is_pointed_to_a_database_for_a_block_only(database_url: str) -> None:
    app = Fleet("postgresql://nowhere.invalid/x")

    @app.task
    def charge(order: int) -> None: ...

    settings = app.settings
    async with Pointed(app, database_url) as pointed:
        await charge.submit(order=7)
        assert pointed.settings.ttl == timedelta(seconds=2)
    assert app.settings is settings
    assert "nowhere.invalid" in app.database.address
    with Pointed(app, database_url):
        charge.submit_sync(order=8)
        assert len(submitted(app)) == 2
