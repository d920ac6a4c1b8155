"""A worker inside another program: `async with app.worker()`."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from fleet import Context, Fleet
from fleet.errors import ConfigurationError
from fleet.events import Event, LeaseGranted
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.support import history
from tests.worker.steps import Gate, Recorder, lease_of, lease_state


async def test_leaving_the_block_drains(app: Fleet, connection: AsyncConnection) -> None:
    gate = Gate()

    @app.task
    async def work() -> str:
        await gate.enter()
        return "done"

    async with app.worker() as worker:
        ref = await work.submit()
        await gate.waiting()
        lease = lease_of(worker)
        asyncio.get_running_loop().call_soon(gate.open)
    assert await ref.result(1) == "done"
    assert await lease_state(connection, lease) == "RELEASED"


async def test_an_error_in_the_block_drains_and_comes_out_as_it_is(app: Fleet, connection: AsyncConnection) -> None:
    gate = Gate()

    @app.task
    async def work() -> str:
        await gate.enter()
        return "done"

    leases = []

    async def program() -> None:
        async with app.worker() as worker:
            await gate.waiting()
            leases.append(lease_of(worker))
            asyncio.get_running_loop().call_soon(gate.open)
            raise ZeroDivisionError

    ref = await work.submit()
    with pytest.raises(ZeroDivisionError):
        await program()
    assert await ref.result(1) == "done"
    assert await lease_state(connection, leases[0]) == "RELEASED"


async def test_a_program_that_is_cancelled_drains_all_the_same(app: Fleet, connection: AsyncConnection) -> None:
    gate = Gate()

    @app.task
    async def work() -> str:
        await gate.enter()
        return "done"

    leases = []

    async def program() -> None:
        async with app.worker() as worker:
            leases.append(lease_of(worker))
            await asyncio.Event().wait()

    running = asyncio.create_task(program())
    ref = await work.submit()
    await gate.waiting()
    running.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await ref.result(1) == "done"
    assert await lease_state(connection, leases[0]) == "RELEASED"


async def test_another_worker_can_be_started_afterwards(app: Fleet, recorder: Recorder) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    for number in range(2):
        async with app.worker(events=recorder.events) as worker:
            assert await (await work.submit(number)).result(10) == number
            worker.drain("test")
            await worker.wait()
    first, second = recorder.of(LeaseGranted)
    assert first.lease.id != second.lease.id


async def test_the_lifespan_is_opened_once_and_closed_after_the_last_handler(app: Fleet) -> None:
    story: list[str] = []
    gate = Gate()

    @app.lifespan
    async def resources() -> AsyncIterator[dict[str, str]]:
        story.append("open")
        yield {"pool": "a pool"}
        story.append("closed")

    @app.task
    async def work(ctx: Context) -> str:
        await gate.enter()
        story.append("handler")
        return str(ctx.state["pool"])

    async with app.worker() as worker:
        refs = [await work.submit() for _ in range(3)]
        await gate.waiting(3)
        worker.drain("test")
        gate.open()
        assert [await ref.result(10) for ref in refs] == ["a pool"] * 3
    assert story == ["open", "handler", "handler", "handler", "closed"]


def fail(error: Exception) -> None:
    raise error


async def test_a_lifespan_that_cannot_open_starts_no_worker(app: Fleet, connection: AsyncConnection) -> None:
    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        fail(OSError("no pool today"))
        yield

    @app.task
    async def work() -> None: ...

    with pytest.raises(OSError, match="no pool today"):
        async with app.worker():
            pass
    cursor = await connection.execute("SELECT FROM fleet.lease")
    assert await cursor.fetchall() == []


async def test_an_app_without_tasks_has_no_worker(app: Fleet) -> None:
    with pytest.raises(ConfigurationError, match="at least one task"):
        app.worker()


async def test_a_subscriber_that_raises_harms_nobody(
    app: Fleet, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    def clumsy(event: Event) -> None:
        raise ZeroDivisionError

    recorder.events.subscribe(clumsy)

    @app.task
    async def work() -> str:
        return "done"

    async with app.worker(events=recorder.events):
        assert await (await work.submit()).result(10) == "done"
    assert "ZeroDivisionError" in capsys.readouterr().err


async def test_arguments_that_no_longer_fit_the_handler_fail_their_task_alone(
    app: Fleet, database_url: str, connection: AsyncConnection
) -> None:
    """A rolling upgrade: the submitter knows an older signature."""
    async with Fleet(database_url, settings=app.settings) as older:

        @older.task(name="work")
        async def old(name: str) -> None: ...

        @app.task
        async def work(number: int) -> int:
            return number

        misfit = await old.submit("seven")
        async with app.worker():
            assert await (await work.submit(7)).result(10) == 7
            with pytest.raises(Exception, match="number: Field required") as failure:
                await misfit.result(10)
    assert getattr(failure.value, "code", None) == "handler_error"


async def test_a_worker_that_is_left_behind_by_a_drain_timeout_hands_everything_back(
    app: Fleet, connection: AsyncConnection
) -> None:
    app.settings = replace(app.settings, drain_timeout=timedelta(0))
    gate = Gate()

    @app.task(idempotent=True)
    async def work() -> None:
        await gate.enter()

    async with app.worker():
        ref = await work.submit()
        await gate.waiting()
    assert await ref.state() is State.QUEUED
    assert await history(connection, ref.id) == [(1, False, "released")]
