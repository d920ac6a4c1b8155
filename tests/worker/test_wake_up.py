"""How soon a worker that sleeps finds work: a notification makes it quick, polling makes it sure."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from fleet import Fleet, Settings, Task
from fleet.postgres import queue, settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Released, Settlement, State
from fleet.worker import lanes
from fleet.worker.process import Worker
from tests.support import claim_some, eventually, execute, new_lease
from tests.worker.steps import Recorder, in_state, lease_of, terminate

POLL_SECONDS = 10.0
SOONER = POLL_SECONDS / 2  # whoever is done by then has not waited for a poll


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """A worker that polls so seldom that only something else can wake it."""
    poll = timedelta(seconds=POLL_SECONDS)
    return replace(settings, poll=poll, poll_listening=poll, ttl=timedelta(seconds=6))


@pytest.fixture
def work(app: Fleet) -> "Task[[int], int]":
    @app.task
    async def work(number: int) -> int:
        return number

    return work


async def asleep(connection: AsyncConnection, worker: Worker) -> None:
    """Wait until the worker has said that it sleeps, and every insert that could not see it has ended."""

    async def probe() -> bool:
        rows = await execute(connection, "SELECT idle FROM fleet.lease WHERE id = :id", id=lease_of(worker).id)
        return (
            bool(rows[0][0])
            and await execute(
                connection,
                """
            SELECT 1 FROM pg_stat_activity
            WHERE application_name = 'fleet claim' AND datname = current_database() AND state = 'idle'
              AND clock_timestamp() - state_change > interval '50 ms'
            """,
            )
            != []
        )

    await eventually(probe)


async def test_an_idle_worker_hears_of_a_task_long_before_it_polls(
    app: Fleet, connection: AsyncConnection, work: "Task[[int], int]"
) -> None:
    async with app.worker() as worker:
        for number in range(3):
            await asleep(connection, worker)
            assert await (await work.submit(number)).result(SOONER) == number


async def test_an_idle_worker_hears_of_what_a_transaction_or_a_copy_brings(
    app: Fleet, connection: AsyncConnection, work: "Task[[int], int]"
) -> None:
    async with app.worker() as worker:
        await asleep(connection, worker)
        async with connection.transaction():
            ref = await work.options(tx=connection).submit(1)
        assert await ref.result(SOONER) == 1
        await asleep(connection, worker)
        (ref,) = await app.submit_many(work, [{"number": 2}])
        assert await ref.result(SOONER) == 2


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_an_idle_worker_hears_of_a_task_from_an_older_snapshot(
    app: Fleet, connection: AsyncConnection, other: AsyncConnection, work: "Task[[int], int]", level: str
) -> None:
    """The submitting transaction began before the worker said that it sleeps, and cannot see it."""
    async with other.transaction():
        await other.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        await other.execute("SELECT FROM fleet.lease")
        async with app.worker() as worker:
            await asleep_or_waiting(connection, worker)
            ref = await work.options(tx=other).submit(1)
            await other.execute("COMMIT")
            assert await ref.result(SOONER) == 1
            await other.execute("BEGIN")


async def asleep_or_waiting(connection: AsyncConnection, worker: Worker) -> None:
    async def probe() -> bool:
        rows = await execute(connection, "SELECT idle FROM fleet.lease WHERE id = :id", id=lease_of(worker).id)
        return bool(rows[0][0])

    await eventually(probe)


async def test_a_worker_whose_listener_was_killed_listens_again_and_looks_at_once(
    app: Fleet, connection: AsyncConnection, work: "Task[[int], int]"
) -> None:
    async with app.worker() as worker:
        await asleep(connection, worker)
        assert await terminate(connection, "listen") == 1
        assert await (await work.submit(1)).result(SOONER) == 1
        await asleep(connection, worker)
        assert await (await work.submit(2)).result(SOONER) == 2


async def test_a_delayed_task_starts_when_it_is_due_and_not_a_poll_later(
    app: Fleet, connection: AsyncConnection, work: "Task[[int], int]"
) -> None:
    async with app.worker() as worker:
        await asleep(connection, worker)
        began = time.monotonic()
        ref = await work.options(delay=0.5).submit(1)
        assert await ref.result(SOONER) == 1
        assert time.monotonic() - began >= 0.5


async def test_a_task_that_was_delayed_before_the_worker_came_starts_when_it_is_due(
    app: Fleet, work: "Task[[int], int]"
) -> None:
    ref = await work.options(delay=0.7).submit(1)
    async with app.worker():
        assert await ref.result(SOONER) == 1


async def test_a_paused_queue_starts_nothing_and_a_resumed_one_runs_what_came_in_meanwhile(
    app: Fleet, connection: AsyncConnection, work: "Task[[int], int]"
) -> None:
    async with app.worker() as worker:
        await asleep(connection, worker)
        assert await queue.pause(connection, "default", "test")
        ref = await work.submit(1)
        await execute(connection, "UPDATE fleet.task SET run_at = run_at - interval '1 hour'")
        await asleep(connection, worker)
        assert await ref.state() is State.QUEUED
        assert await queue.resume(connection, "default", "test")
        assert await ref.result(SOONER) == 1


async def test_what_another_worker_hands_back_is_found(
    app: Fleet, connection: AsyncConnection, settings: Settings, work: "Task[[int], int]"
) -> None:
    """It keeps its place in line, behind the cursor of everybody else."""
    app.settings = replace(settings, poll=timedelta(milliseconds=50), poll_listening=timedelta(milliseconds=50))
    lease = await new_lease(connection)
    refs = [await work.submit(number) for number in range(2)]
    (task,) = await claim_some(connection, lease, 1, name="work", idempotent=False)
    async with app.worker():
        assert await refs[1].result(SOONER) == 1
        await settle.give_back(connection, lease, [Settlement(task, Released("test"))])
        assert await refs[0].result(SOONER) == 0


async def test_what_is_handed_back_is_found_by_the_scout_where_looking_is_dear(
    app: Fleet,
    connection: AsyncConnection,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    work: "Task[[int], int]",
) -> None:
    monkeypatch.setattr(lanes, "DEAR_SECONDS", -1.0)  # every look from the head took too long for a claim
    monkeypatch.setattr(lanes, "HEAD_SCAN_EVERY_SECONDS", POLL_SECONDS)
    monkeypatch.setattr(lanes, "HEAD_SCAN_SHARE", 0)
    lease = await new_lease(connection)
    refs = [await work.submit(number) for number in range(2)]
    (task,) = await claim_some(connection, lease, 1, name="work", idempotent=False)
    await execute(connection, "UPDATE fleet.task SET run_at = run_at - interval '1 hour'")
    async with app.worker() as worker:
        assert await refs[1].result(SOONER) == 1
        await asleep(connection, worker)
        await settle.give_back(connection, lease, [Settlement(task, Released("test"))])
        assert await refs[0].result(SOONER) == 0


async def test_without_notifications_polling_finds_everything(
    app: Fleet, recorder: Recorder, settings: Settings, monkeypatch: pytest.MonkeyPatch, work: "Task[[int], int]"
) -> None:
    from fleet.postgres import listen

    async def deaf(connection: AsyncConnection) -> None:
        await connection.execute("UNLISTEN *")

    monkeypatch.setattr(listen, "listen", deaf)
    app.settings = replace(settings, poll=timedelta(milliseconds=50), poll_listening=timedelta(milliseconds=50))
    async with app.worker(events=recorder.events):
        for number in range(3):
            assert await (await work.submit(number)).result(SOONER) == number


async def test_a_retry_of_its_own_is_started_when_it_is_due(app: Fleet, settings: Settings) -> None:
    app.settings = replace(settings, backoff_base=timedelta(milliseconds=100))
    tries = []

    @app.task(idempotent=True)
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError
        return len(tries)

    async with app.worker():
        assert await (await flaky.submit()).result(SOONER) == 3


@pytest.mark.fault("Payloads", "an unknown task name")
@pytest.mark.fault("Reaper", "a task whose name no process knows")
async def test_a_name_that_no_handler_has_stays_in_the_queue_and_holds_nobody_up(
    app: Fleet, connection: AsyncConnection, work: "Task[[int], int]"
) -> None:
    async with Fleet(app.database.conninfo("stranger"), settings=app.settings) as stranger:

        @stranger.task
        async def unknown() -> None: ...

        ref = await unknown.options(priority=0).submit()
        async with app.worker():
            assert await (await work.submit(1)).result(SOONER) == 1
            assert await ref.state() is State.QUEUED
        async with stranger.worker():
            await in_state(ref, State.SUCCEEDED, SOONER)
