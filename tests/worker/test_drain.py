"""A worker that is asked to end: what it takes, what it finishes, what it hands back, and that it always ends."""

from dataclasses import replace
from datetime import timedelta

import pytest

from fleet import Context, Fleet, Settings
from fleet.errors import TaskFailed
from fleet.events import DatabaseTrouble, DrainStarted, LeaseInDoubt, LeaseLost, LeaseRenewed, TasksClaimed
from fleet.postgres import claim, heartbeat
from fleet.postgres.database import AsyncConnection
from fleet.task import ClaimedTask, State
from tests.support import history, row
from tests.worker.steps import (
    Gate,
    Recorder,
    ThreadGate,
    fence,
    in_lease_state,
    lease_of,
    lease_state,
    outage,
    terminate,
    until,
)

LARGE = "x" * 10_000  # fetched apart from the claim, so that a test can hold a task before its start


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, drain_timeout=timedelta(milliseconds=200), margin=timedelta(milliseconds=200))


@pytest.fixture
def patient(app: Fleet) -> Fleet:
    """The same app, whose drain waits as long as a handler likes."""
    app.settings = replace(app.settings, drain_timeout=timedelta(minutes=1))
    return app


async def test_a_draining_worker_claims_nothing_more_and_lets_handlers_end(
    patient: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    gate = Gate()

    @patient.task
    async def work(number: int) -> int:
        await gate.enter(number)
        return number

    async with patient.worker(events=recorder.events) as worker:
        running = await work.submit(1)
        await gate.waiting()
        lease = lease_of(worker)
        worker.drain("test")
        await until(lambda: lease_of(worker) is lease and bool(recorder.of(DrainStarted)))
        await in_lease_state(connection, lease, "DRAINING")  # a claim that is under way would take one more
        waiting = await work.submit(2)
        await recorder.next(LeaseRenewed)
        await recorder.next(LeaseRenewed)  # the heartbeat goes on until the last handler has ended
        assert await lease_state(connection, lease) == "DRAINING"
        gate.open()
        await worker.wait()
        assert await running.result(10) == 1
        assert await waiting.state() is State.QUEUED
        assert await lease_state(connection, lease) == "RELEASED"
        assert not worker.stuck
    assert sum(event.count for event in recorder.of(TasksClaimed)) == 1


async def test_what_has_not_started_is_handed_back_at_no_cost(
    app: Fleet, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, fetch_args = Gate(), claim.fetch_args

    async def held_fetch(session: AsyncConnection, task: ClaimedTask) -> str | None:
        await gate.enter(task.id)
        return await fetch_args(session, task)

    monkeypatch.setattr(claim, "fetch_args", held_fetch)
    started = []

    @app.task
    async def work(text: str) -> None:
        started.append(text)

    async with app.worker() as worker:
        ref = await work.submit(LARGE)
        await gate.waiting()
        worker.drain("test")
        gate.open()
        await worker.wait()
        assert await ref.state() is State.QUEUED
    stored = await row(connection, ref.id)
    assert started == []
    assert (stored["attempt"], stored["failures"], stored["losses"]) == (1, 0, 0)
    assert await history(connection, ref.id) == [(1, False, "released")]


async def test_at_the_drain_timeout_repeatable_handlers_are_handed_back_and_others_fail_as_interrupted(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    gate = Gate()

    @app.task(idempotent=True)
    async def harmless() -> None:
        await gate.enter("harmless")

    @app.task
    async def charge() -> None:
        await gate.enter("charge")

    async with app.worker(events=recorder.events) as worker:
        kept, lost = await harmless.submit(), await charge.submit()
        await gate.waiting(2)
        lease = lease_of(worker)
        worker.drain("test")
        await worker.wait()
        assert not worker.stuck
    assert sorted(gate.cancelled) == ["charge", "harmless"]
    stored = await row(connection, kept.id)
    assert (stored["state"], stored["attempt"], stored["failures"], stored["losses"]) == ("QUEUED", 1, 0, 0)
    with pytest.raises(TaskFailed, match="shut down") as failure:
        await lost.result(10)
    assert failure.value.code == "interrupted"
    assert await lease_state(connection, lease) == "RELEASED"


async def test_at_the_drain_timeout_a_thread_that_goes_on_is_settled_without_it(
    app: Fleet, connection: AsyncConnection
) -> None:
    gate = ThreadGate()

    @app.task
    def charge() -> None:
        gate.enter()

    @app.task(idempotent=True)
    def harmless() -> None:
        gate.enter()

    try:
        async with app.worker() as worker:
            lost, kept = await charge.submit(), await harmless.submit()
            await gate.waiting(2)
            lease = lease_of(worker)
            worker.drain("test")
            await worker.wait()
            assert worker.stuck
            assert (await row(connection, lost.id))["failure_code"] == "interrupted"
            assert await kept.state() is State.QUEUED
            assert await lease_state(connection, lease) == "RELEASED"
    finally:
        gate.open()


async def test_at_the_drain_timeout_a_thread_that_looks_ends_by_itself(app: Fleet, connection: AsyncConnection) -> None:
    entered = []

    @app.task(idempotent=True)
    def polite(ctx: Context) -> None:
        entered.append(ctx.attempt)
        while True:
            ctx.raise_if_stopping()

    async with app.worker() as worker:
        ref = await polite.submit()
        await until(lambda: bool(entered))
        worker.drain("test")
        await worker.wait()
        assert not worker.stuck
    assert await history(connection, ref.id) == [(1, False, "released")]


async def test_a_second_drain_waits_no_longer_for_handlers(patient: Fleet, connection: AsyncConnection) -> None:
    gate = Gate()

    @patient.task(idempotent=True)
    async def work() -> None:
        await gate.enter()

    async with patient.worker() as worker:
        ref = await work.submit()
        await gate.waiting()
        worker.drain("first")
        worker.drain("second")
        await worker.wait()
        assert await ref.state() is State.QUEUED


async def test_a_lease_set_to_drain_by_an_operator_drains_its_worker(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    @app.task
    async def work() -> None: ...

    async with app.worker(events=recorder.events) as worker:
        lease = lease_of(worker)
        assert await heartbeat.drain(connection, lease.id)
        await worker.wait()
        assert await lease_state(connection, lease) == "RELEASED"
    assert [event.why for event in recorder.of(DrainStarted)] == ["its lease was set to drain"]


async def test_a_claim_connection_that_died_unnoticed_does_not_keep_the_lease_from_being_released(
    patient: Fleet, connection: AsyncConnection
) -> None:
    gate = Gate()

    @patient.task
    async def work() -> str:
        await gate.enter()
        return "done"

    patient.settings = replace(patient.settings, slots=1)
    async with patient.worker() as worker:
        ref = await work.submit()
        await gate.waiting()
        lease = lease_of(worker)
        assert await terminate(connection, "claim") == 1
        worker.drain("test")
        gate.open()
        await worker.wait()
        assert await ref.result(10) == "done"
        assert await lease_state(connection, lease) == "RELEASED"


async def test_a_worker_fenced_while_it_drains_registers_no_other_lease(
    patient: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    gate = Gate()

    @patient.task
    async def work() -> None:
        await gate.enter()

    async with patient.worker(events=recorder.events) as worker:
        await work.submit()
        await gate.waiting()
        lease = lease_of(worker)
        worker.drain("test")

        await until(lambda: bool(recorder.of(DrainStarted)))
        await fence(connection, lease)
        await recorder.seen(LeaseLost)
        gate.open()
        await worker.wait()
    cursor = await connection.execute("SELECT state FROM fleet.lease")
    assert await cursor.fetchall() == [("REAPED",)]


async def test_a_drain_ends_although_the_database_is_away(
    app: Fleet, recorder: Recorder, server_url: str, database_url: str
) -> None:
    @app.task
    async def work() -> None: ...

    async with app.worker(events=recorder.events) as worker, outage(server_url, database_url):
        await recorder.seen(LeaseInDoubt)
        worker.drain("test")
        await worker.wait()
        assert recorder.of(DatabaseTrouble)
