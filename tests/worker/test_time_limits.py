"""A handler that runs past its time: stopped where that is possible, and given up where it is not."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from fleet import Context, Fleet, Settings
from fleet.errors import TaskFailed
from fleet.events import DrainStarted, TaskFenced, TaskSettled, TaskStuck
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.support import counters, history, row
from tests.worker.steps import Gate, Recorder, ThreadGate, lease_of, lease_state, until

LIMIT = 0.05


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(
        settings,
        margin=timedelta(milliseconds=200),
        drain_timeout=timedelta(minutes=1),
        backoff_base=timedelta(milliseconds=1),
    )


@pytest.mark.fault("Stall", "a handler past its time limit")
async def test_an_async_handler_past_its_limit_is_cancelled_and_fails_as_timeout(app: Fleet) -> None:
    gate = Gate()

    @app.task(timeout=LIMIT)
    async def work() -> None:
        await gate.enter()

    async with app.worker() as worker:
        ref = await work.submit()
        with pytest.raises(TaskFailed, match=r"past its time limit of 0\.05 s") as failure:
            await ref.result(10)
        assert failure.value.code == "timeout"
        assert len(gate.cancelled) == 1
        assert not worker.stuck


async def test_a_repeatable_handler_past_its_limit_is_tried_again(app: Fleet, connection: AsyncConnection) -> None:
    gate = Gate()

    @app.task(idempotent=True)
    async def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            await gate.enter()
        return ctx.attempt

    async with app.worker():
        ref = await work.options(timeout=LIMIT).submit()
        assert await ref.result(10) == 2
    assert (await row(connection, ref.id))["failures"] == 1


async def test_a_repeatable_handler_that_is_always_late_fails_as_timeout_when_its_budget_is_spent(app: Fleet) -> None:
    gate = Gate()

    @app.task(idempotent=True, max_attempts=2, timeout=LIMIT)
    async def work() -> None:
        await gate.enter()

    async with app.worker():
        with pytest.raises(TaskFailed) as failure:
            await (await work.submit()).result(10)
    assert failure.value.code == "timeout"
    assert len(gate.cancelled) == 2


async def test_the_limit_of_a_submission_goes_before_that_of_its_handler(app: Fleet) -> None:
    @app.task(timeout=LIMIT)
    async def work() -> str:
        await asyncio.sleep(2 * LIMIT)  # it is the limit itself that is tested
        return "done"

    async with app.worker():
        assert await (await work.options(timeout=60).submit()).result(10) == "done"


async def test_a_handler_that_tidies_up_within_the_grace_is_not_stuck(app: Fleet, recorder: Recorder) -> None:
    gate = Gate()

    @app.task(timeout=LIMIT)
    async def work() -> None:
        try:
            await gate.enter()
        finally:
            await asyncio.sleep(0.01)

    async with app.worker(events=recorder.events):
        with pytest.raises(TaskFailed, match="timeout"):
            await (await work.submit()).result(10)
    assert recorder.of(TaskStuck) == []


async def test_a_thread_that_looks_ends_within_the_grace_and_is_not_stuck(app: Fleet, recorder: Recorder) -> None:
    @app.task(timeout=LIMIT)
    def work(ctx: Context) -> None:
        while True:
            ctx.raise_if_stopping()

    async with app.worker(events=recorder.events) as worker:
        with pytest.raises(TaskFailed, match="timeout"):
            await (await work.submit()).result(10)
        assert not worker.stuck
    assert recorder.of(TaskStuck) == []


@pytest.mark.fault("Stall", "an async handler that swallows its cancellation")
async def test_a_handler_that_swallows_its_cancellation_is_given_up_and_harms_no_neighbour(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    deaf, gate = Gate(), Gate()

    @app.task(timeout=LIMIT)
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await deaf.enter()
        return "late"

    @app.task
    async def neighbour() -> str:
        await gate.enter()
        return "unharmed"

    async with app.worker(events=recorder.events) as worker:
        beside = await neighbour.submit()
        await gate.waiting()
        ref, lease = await stubborn.submit(), lease_of(worker)
        assert (await recorder.seen(TaskStuck)).task.id == ref.id
        with pytest.raises(TaskFailed, match="timeout"):
            await ref.result(10)
        assert worker.stuck
        assert "cannot be stopped" in (await recorder.seen(DrainStarted)).why
        gate.open()
        assert await beside.result(10) == "unharmed"
        assert await lease_state(connection, lease) == "DRAINING", "the drain waits for the one that is stuck"
        deaf.open()
        await worker.wait()
        assert await lease_state(connection, lease) == "RELEASED"
    assert await history(connection, ref.id) == [(1, False, "error"), (1, True, "succeeded")]
    assert (await counters(connection))["fence_rejections", "default", ""] == 1


@pytest.mark.fault("Stall", "a thread that ignores everything")
async def test_a_thread_that_does_not_look_is_given_up_and_its_report_is_kept_as_late(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    gate = ThreadGate()

    @app.task(timeout=LIMIT)
    def stubborn() -> str:
        gate.enter()
        return "late"

    try:
        async with app.worker(events=recorder.events) as worker:
            ref = await stubborn.submit()
            await recorder.seen(TaskStuck)
            with pytest.raises(TaskFailed, match="timeout"):
                await ref.result(10)
            gate.open()
            await recorder.seen(TaskFenced)
            await worker.wait()
            assert worker.stuck
    finally:
        gate.open()
    assert await history(connection, ref.id) == [(1, False, "error"), (1, True, "succeeded")]


async def test_a_stuck_handler_that_ends_before_its_timeout_could_be_written_harms_nobody(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, holder: AsyncConnection
) -> None:
    """Both reports of the attempt wait for the row's lock, and are written in one go."""
    gate = ThreadGate()

    @app.task(timeout=LIMIT)
    def stubborn() -> str:
        gate.enter()
        return "late"

    try:
        async with app.worker(events=recorder.events) as worker:
            ref = await stubborn.submit()
            await gate.waiting()
            async with holder.transaction():
                await holder.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (ref.id,))
                await recorder.seen(TaskStuck)
                gate.open()
                await until(lambda: not worker._slots.busy)
            await worker.wait()
    finally:
        gate.open()
    assert len(recorder.of(TaskSettled)) == len(recorder.of(TaskFenced)) == 1, "whichever is written first"
    assert await history(connection, ref.id) in (
        [(1, False, "error"), (1, True, "succeeded")],
        [(1, True, "error")],
    )


async def test_a_handler_that_swallows_every_cancellation_does_not_keep_the_worker_from_ending(
    app: Fleet, recorder: Recorder
) -> None:
    app.settings = replace(app.settings, drain_timeout=timedelta(milliseconds=100))
    over, entered = asyncio.Event(), []

    @app.task(timeout=LIMIT)
    async def stubborn() -> None:
        entered.append(1)
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                entered.append(2)

    async with app.worker(events=recorder.events) as worker:
        ref = await stubborn.submit()
        await worker.wait()
        assert worker.stuck
        assert await ref.state() is State.FAILED
        over.set()
