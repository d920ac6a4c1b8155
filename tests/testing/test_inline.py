"""Inline mode: submitted is run, in the caller, as a worker would have run it; no database is near."""

import threading
from dataclasses import dataclass
from datetime import date

import pytest

from fleet import Context, Fail, Fleet, Retry
from fleet.errors import ConfigurationError, IdempotencyConflict, InvalidArguments, NotFound, TaskFailed
from fleet.postgres import inspect
from fleet.task import State
from fleet.testing import assert_submitted, inline, submitted


@pytest.fixture
def app() -> Fleet:
    """An app without any database."""
    return Fleet()


@dataclass
class Order:
    number: int
    day: date


async def test_an_async_handler_runs_at_once_and_its_result_is_kept(app: Fleet) -> None:
    seen: list[object] = []

    @app.task
    async def charge(order: Order) -> dict[str, object]:
        seen.append(order)
        return {"paid": order.number, "on": order.day}

    with inline(app) as done:
        ref = await charge.submit(order=Order(7, date(2026, 11, 30)))
        assert seen == [Order(7, date(2026, 11, 30))]
        assert await ref.result() == {"paid": 7, "on": "2026-11-30"}
        assert await ref.state() is State.SUCCEEDED
    assert [(task.name, task.attempts) for task in done.tasks.values()] == [("charge", 1)]


def test_a_plain_handler_runs_in_the_thread_of_its_caller(app: Fleet) -> None:
    @app.task
    def where() -> None:
        threads.append(threading.current_thread())

    threads: list[threading.Thread] = []
    with inline(app):
        where.submit_sync()
    assert threads == [threading.current_thread()]


async def test_an_async_handler_runs_for_plain_code_too_even_beside_a_running_loop(app: Fleet) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    with inline(app):
        assert await double.submit_sync(number=4).result() == 8


async def test_arguments_are_checked_as_in_production(app: Fleet) -> None:
    @app.task
    def count(text: str) -> int:
        return len(text)

    with inline(app) as done:
        with pytest.raises(InvalidArguments, match="text: Input should be a valid string"):
            await count.submit(text=7)  # type: ignore[arg-type]
        assert not done.tasks


async def test_a_retry_is_made_at_once_with_the_next_attempt(app: Fleet) -> None:
    @app.task(max_attempts=2)
    def charge(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Retry("come back", after=3600)
        return ctx.attempt

    with inline(app):
        assert await (await charge.submit()).result() == 2


@pytest.mark.parametrize(("idempotent", "attempts"), [(True, 5), (False, 1)])
async def test_an_error_is_tried_again_only_where_a_worker_would(app: Fleet, idempotent: bool, attempts: int) -> None:
    @app.task(idempotent=idempotent)
    def broken() -> None:
        raise ZeroDivisionError("so it goes")

    with inline(app) as done:
        ref = await broken.submit()
        with pytest.raises(TaskFailed, match=r"handler_error.*so it goes"):
            await ref.result()
    assert done.tasks[ref.id].attempts == attempts


async def test_fail_ends_a_task_whatever_its_budget(app: Fleet) -> None:
    @app.task(idempotent=True)
    def refused() -> None:
        raise Fail("no such order")

    with inline(app) as done:
        ref = await refused.submit()
    assert done.tasks[ref.id].failure_code == "handler_error"
    assert done.tasks[ref.id].attempts == 1


async def test_a_result_that_cannot_be_stored_fails_as_in_production(app: Fleet) -> None:
    @app.task
    def odd() -> object:
        return object()

    with inline(app):
        ref = await odd.submit()
        with pytest.raises(TaskFailed, match="result_rejected"):
            await ref.result()


async def test_a_handler_may_submit_and_find_its_state(app: Fleet) -> None:
    @app.task
    async def inner(number: int) -> int:
        return number + 1

    @app.task
    async def outer(ctx: Context, number: int) -> int:
        ref = await inner.submit(number=number * ctx.state)
        return await ref.result()

    with inline(app, state=10):
        assert await (await outer.submit(number=4)).result() == 41
        assert_submitted(app, inner, number=40)


async def test_one_key_is_one_task_and_another_request_a_conflict(app: Fleet) -> None:
    @app.task
    def charge(order: int) -> int:
        return order

    with inline(app) as done:
        first = await charge.options(idempotency_key="order-7").submit(order=7)
        again = await charge.options(idempotency_key="order-7").submit(order=7)
        with pytest.raises(IdempotencyConflict):
            await charge.options(idempotency_key="order-7").submit(order=8)
    assert first.id == again.id
    assert len(done.tasks) == 1


async def test_what_inline_mode_cannot_do_it_refuses(app: Fleet) -> None:
    @app.task
    def count(text: str) -> int:
        return len(text)

    with inline(app):
        ref = await count.submit(text="x")
        with pytest.raises(ConfigurationError, match="inline mode"):
            await ref.cancel()
        with pytest.raises(ConfigurationError, match="inline mode"):
            await app.submit_many(count, [{"text": "x"}])
    with inline(app):
        other = await count.submit(text="y")
    assert ref.id != other.id
    with inline(app) as later, pytest.raises(NotFound):
        await later.query(inspect.RESULT, id=ref.id)


async def test_after_the_block_the_app_submits_to_its_database_again(app: Fleet) -> None:
    @app.task
    def count(text: str) -> int:
        return len(text)

    before = app._client
    with inline(app):
        await count.submit(text="x")
        assert [task.arguments for task in submitted(app, count)] == [{"text": "x"}]
    assert app._client is before
