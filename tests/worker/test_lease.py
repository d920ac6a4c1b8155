"""A worker and its lease: lost, in doubt, renewed."""

import pytest

from fleet import Context, Fleet
from fleet.errors import TaskFailed
from fleet.events import LeaseGranted, LeaseInDoubt, LeaseLost, LeaseRenewed, TaskFenced, TaskStarted
from fleet.postgres.database import AsyncConnection
from fleet.task import Released, State, Succeeded
from tests.support import counters, history, row
from tests.worker.steps import Gate, Recorder, ThreadGate, fence, in_state, lease_of, lease_state, locked


async def test_a_fenced_worker_cancels_what_is_repeatable_and_runs_it_again_under_a_new_lease(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    gate = Gate()

    @app.task(idempotent=True)
    async def work(ctx: Context) -> int:
        await gate.enter(ctx.attempt)
        return ctx.attempt

    async with app.worker(events=recorder.events) as worker:
        ref = await work.submit()
        await gate.waiting()
        first = lease_of(worker)
        assert (await fence(connection, first)).requeued == 1
        await gate.waiting(2)
        gate.open()
        assert await ref.result(10) == 2
        assert (await recorder.seen(LeaseLost)).lease is first
        assert lease_of(worker) is (await recorder.seen(LeaseGranted, 2)).lease is not first
        assert gate.cancelled == [1]
        assert isinstance((await recorder.seen(TaskFenced)).settlement.outcome, Released)
    assert await history(connection, ref.id) == [(1, False, "lost"), (1, True, "released")]
    assert (await row(connection, ref.id))["losses"] == 1


async def test_a_fenced_worker_lets_what_is_not_repeatable_go_on_and_its_report_is_kept_as_late(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    gate = Gate()

    @app.task
    async def charge() -> str:
        await gate.enter()
        return "paid"

    async with app.worker(events=recorder.events) as worker:
        ref = await charge.submit()
        await gate.waiting()
        assert (await fence(connection, lease_of(worker))).failed == 1
        await recorder.seen(LeaseGranted, 2)
        before = await row(connection, ref.id)
        gate.open()
        assert (await recorder.seen(TaskFenced)).settlement.outcome == Succeeded('"paid"')
        with pytest.raises(TaskFailed, match="lease_expired"):
            await ref.result(10)
        assert await row(connection, ref.id) == before
        assert await (await charge.submit()).result(10) == "paid", "the worker goes on under its new lease"
    assert gate.cancelled == []
    assert await history(connection, ref.id) == [(1, False, "lost"), (1, True, "succeeded")]
    counted = await counters(connection)
    assert counted["fence_rejections", "default", ""] == 1
    assert counted["dead_letters", "default", "lease_expired"] == 1


async def test_a_fenced_thread_is_told_to_stop_where_it_is_repeatable(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    gate, told = ThreadGate(), []

    @app.task(idempotent=True)
    def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            gate.enter()
            told.append(ctx.stopping)
            ctx.raise_if_stopping()
        return ctx.attempt

    async with app.worker(events=recorder.events) as worker:
        ref = await work.submit()
        await gate.waiting()
        await fence(connection, lease_of(worker))
        await recorder.seen(LeaseLost)
        assert await ref.result(10) == 2, "it does not wait for the thread"
        gate.open()
        await recorder.seen(TaskFenced)
    assert told == [True]


async def test_in_doubt_nothing_starts_and_what_is_repeatable_is_handed_back(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, holder: AsyncConnection
) -> None:
    gate = Gate()

    @app.task(idempotent=True)
    async def work(ctx: Context, number: int) -> int:
        await gate.enter((number, ctx.attempt))
        return ctx.attempt

    async with app.worker(events=recorder.events) as worker:
        ref = await work.submit(1)
        await gate.waiting()
        async with locked(holder, "lease", lease_of(worker).id):
            await recorder.seen(LeaseInDoubt)
            await in_state(ref, State.QUEUED)
            another = await work.submit(2)
            gate.open()
        ran = await ref.result(10)
        assert ran >= 2
        other = await another.result(10)
        assert recorder.of(LeaseLost) == []
        in_doubt = recorder.all.index(recorder.of(LeaseInDoubt)[0])
        after = [type(event) for event in recorder.all[in_doubt:]]
        assert after.index(LeaseRenewed) < after.index(TaskStarted)
    stored = await row(connection, ref.id)
    assert (stored["attempt"], stored["failures"], stored["losses"]) == (ran, 0, 0)
    # Where the machine stands still once more, it is in doubt once more: each attempt but the last is handed back.
    for task, last in ((ref, ran), (another, other)):
        assert await history(connection, task.id) == [(attempt, False, "released") for attempt in range(1, last)]


async def test_in_doubt_what_is_not_repeatable_goes_on_and_its_result_is_taken_after_the_renewal(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, holder: AsyncConnection
) -> None:
    gate = Gate()

    @app.task
    async def charge() -> str:
        await gate.enter()
        return "paid"

    async with app.worker(events=recorder.events) as worker:
        ref = await charge.submit()
        await gate.waiting()
        lease = lease_of(worker)
        async with locked(holder, "lease", lease.id):
            await recorder.seen(LeaseInDoubt)
        await recorder.next(LeaseRenewed)
        assert await lease_state(connection, lease) == "LIVE"
        gate.open()
        assert await ref.result(10) == "paid"
        assert lease_of(worker) is lease
    assert (len(gate.entered), gate.cancelled) == (1, [])
    assert await history(connection, ref.id) == []


async def test_what_ends_while_the_lease_is_in_doubt_is_accepted_as_long_as_nobody_reaped_it(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, holder: AsyncConnection
) -> None:
    gate = Gate()

    @app.task
    async def charge() -> str:
        await gate.enter()
        return "paid"

    async with app.worker(events=recorder.events) as worker:
        ref = await charge.submit()
        await gate.waiting()
        async with locked(holder, "lease", lease_of(worker).id):
            await recorder.seen(LeaseInDoubt)
            gate.open()
            assert await ref.result(10) == "paid"
    assert recorder.of(TaskFenced) == []
