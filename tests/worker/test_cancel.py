"""Cancel: at once before the start, by the heartbeat afterwards, and never what has ended."""

import asyncio

import pytest
from uuid_utils.compat import uuid7

from fleet import Context, Fleet, Retry, TaskRef
from fleet.errors import NotFound, TaskCancelled
from fleet.events import TaskSettled
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.support import history, row
from tests.worker.steps import Gate, Recorder, ThreadGate, lease_of, locked, until


async def test_a_task_that_waits_is_cancelled_at_once(app: Fleet) -> None:
    ran = []

    @app.task
    async def work() -> None:
        ran.append(1)

    ref = await work.submit()
    assert await ref.cancel() is State.CANCELLED
    async with app.worker():
        with pytest.raises(TaskCancelled):
            await ref.result(10)
        await (await work.submit()).result(10)
    assert ran == [1]


async def test_a_running_async_handler_is_stopped(app: Fleet, connection: AsyncConnection) -> None:
    gate = Gate()

    @app.task
    async def work() -> None:
        await gate.enter()

    async with app.worker():
        ref = await work.submit()
        await gate.waiting()
        assert await ref.cancel() is State.RUNNING
        with pytest.raises(TaskCancelled):
            await ref.result(10)
    assert len(gate.cancelled) == 1
    assert await history(connection, ref.id) == [(1, False, "cancelled")]


async def test_a_running_thread_sees_that_it_should_stop(app: Fleet) -> None:
    entered = []

    @app.task
    def work(ctx: Context) -> None:
        entered.append(ctx.stopping)
        while True:
            ctx.raise_if_stopping()

    async with app.worker() as worker:
        ref = await work.submit()
        await until(lambda: bool(entered))
        await ref.cancel()
        with pytest.raises(TaskCancelled):
            await ref.result(10)
        assert not worker.stuck
    assert entered == [False]


async def test_a_thread_that_finishes_all_the_same_keeps_its_result(app: Fleet, connection: AsyncConnection) -> None:
    gate = ThreadGate()

    @app.task
    def work() -> str:
        gate.enter()
        return "done"

    async with app.worker():
        ref = await work.submit()
        await gate.waiting()
        await ref.cancel()
        gate.open()
        assert await ref.result(10) == "done"
    assert (await row(connection, ref.id))["cancel_requested"]


async def test_a_task_that_has_ended_cannot_be_cancelled(app: Fleet) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with app.worker():
        ref = await work.submit()
        assert await ref.result(10) == "done"
        assert await ref.cancel() is State.SUCCEEDED
        assert await ref.result(10) == "done"


async def test_a_handler_that_asks_for_a_retry_after_a_cancel_is_cancelled(
    app: Fleet, recorder: Recorder, holder: AsyncConnection
) -> None:
    """Its worker has not heard of the request when the handler raises: the settling statement decides."""
    gate = Gate()

    @app.task(idempotent=True)
    async def work() -> None:
        await gate.enter()
        raise Retry("again, please", after=0)

    async with app.worker(events=recorder.events) as worker:
        ref = await work.submit()
        await gate.waiting()
        async with locked(holder, "lease", lease_of(worker).id):
            assert await ref.cancel() is State.RUNNING
            gate.open()
            with pytest.raises(TaskCancelled):
                await ref.result(10)
        assert gate.cancelled == []
        assert (await recorder.seen(TaskSettled)).state is State.CANCELLED


async def test_a_cancelled_handler_that_raises_something_else_is_cancelled(app: Fleet) -> None:
    gate = Gate()

    @app.task
    async def work() -> None:
        try:
            await gate.enter()
        except asyncio.CancelledError:
            raise ValueError("no time to die") from None

    async with app.worker():
        ref = await work.submit()
        await gate.waiting()
        await ref.cancel()
        with pytest.raises(TaskCancelled):
            await ref.result(10)


async def test_a_task_that_waits_for_its_retry_is_cancelled_at_once(app: Fleet, recorder: Recorder) -> None:
    @app.task(idempotent=True)
    async def work() -> None:
        raise Retry(after=3600)

    async with app.worker(events=recorder.events):
        ref = await work.submit()
        assert (await recorder.seen(TaskSettled)).state is State.QUEUED
        assert await ref.cancel() is State.CANCELLED


async def test_a_task_that_does_not_exist_is_not_found(app: Fleet) -> None:
    ref: TaskRef[None] = TaskRef(uuid7(), app.client)
    for question in (ref.cancel, ref.state, ref.result):
        with pytest.raises(NotFound, match="there is no task"):
            await question()
