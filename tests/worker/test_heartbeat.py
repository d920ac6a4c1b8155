"""The heartbeat has a thread and a connection of its own: nothing that a handler does can starve it."""

import asyncio
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from fleet import Fleet, Settings
from fleet.events import LeaseGranted, LeaseInDoubt, LeaseLost, LeaseRenewed, LeasesReaped, TasksReclaimed
from fleet.postgres.database import AsyncConnection
from tests.support import history, row
from tests.worker.steps import Gate, Recorder, ThreadGate, lease_of, until

TTL_SECONDS = 1.0


@pytest.fixture
def settings() -> Settings:
    return Settings(ttl=timedelta(seconds=TTL_SECONDS), slots=4)


async def test_a_handler_that_blocks_the_event_loop_longer_than_the_ttl_keeps_its_lease(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    @app.task
    async def work() -> str:
        time.sleep(1.5 * TTL_SECONDS)  # noqa: ASYNC251 - the loop stands still: that is the case under test
        return "done"

    async with app.worker(events=recorder.events) as worker:
        lease = lease_of(worker)
        ref = await work.submit()
        assert await ref.result(10) == "done"
        assert lease_of(worker) is lease
    assert recorder.of(LeaseInDoubt) == []
    assert recorder.of(LeaseLost) == []
    assert await history(connection, ref.id) == []


async def test_a_task_three_leases_long_runs_once(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, database_url: str, settings: Settings
) -> None:
    gate, beside = Gate(), Recorder(recorder.events.__class__())

    @app.task(idempotent=True)
    async def work() -> str:
        await gate.enter()
        return "done"

    async with Fleet(database_url, settings=settings) as other:
        other.task(idempotent=True, name="work")(work.handler.function)
        async with app.worker(events=recorder.events), other.worker(events=beside.events):
            ref = await work.submit()
            await gate.waiting()
            began = time.monotonic()
            await until(lambda: time.monotonic() - began > 3 * TTL_SECONDS)
            assert len(gate.entered) == 1
            gate.open()
            assert await ref.result(10) == "done"
    assert recorder.of(LeasesReaped) == beside.of(LeasesReaped) == []
    assert recorder.of(TasksReclaimed) == beside.of(TasksReclaimed) == []
    assert (await row(connection, ref.id))["attempt"] == 1


async def test_handlers_that_exhaust_the_threads_and_the_pool_do_not_starve_it(app: Fleet, recorder: Recorder) -> None:
    gate, threads = Gate(), ThreadGate()

    @app.task
    async def hoard() -> None:
        async with app.client.connection(), app.client.connection(), app.client.connection(), app.client.connection():
            await gate.enter()

    @app.task
    def block() -> None:
        threads.enter()

    try:
        async with app.worker(events=recorder.events):
            for task in (hoard, block, hoard, block):
                await task.submit()
            await gate.waiting(2)
            await threads.waiting(2)
            renewals = len(recorder.of(LeaseRenewed))
            await recorder.seen(LeaseRenewed, renewals + 7)  # more than a TTL
            gate.open()
            threads.open()
    finally:
        threads.open()
    assert recorder.of(LeaseInDoubt) == []
    assert len(recorder.of(LeaseGranted)) == 1


PROGRAM = """
import asyncio, sys, threading
from datetime import timedelta
from fleet import Fleet, Settings
from fleet.events import Events
from fleet.worker.runner import run

app = Fleet(sys.argv[1], settings=Settings(ttl=timedelta(seconds=1), stall_limit=timedelta(seconds=0.6), slots=1))

@app.task
async def stand_still():
    threading.Event().wait()

async def submit():
    await stand_still.submit()
    await app.close()

if sys.argv[2] == "stall":
    asyncio.run(submit())
events = Events()
events.subscribe(lambda event: print(type(event).__name__, flush=True))
sys.exit(run(app.worker(events=events)))
"""


async def start(database_url: str, what: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, database_url, what, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.mark.fault("Stall", "the event loop is blocked")
async def test_a_process_whose_event_loop_stands_still_is_given_up_with_the_stacks_of_its_threads(
    database_url: str, connection: AsyncConnection
) -> None:
    process = await start(database_url, "stall")
    _, said = await asyncio.wait_for(process.communicate(), 30)
    text = said.decode()
    assert process.returncode == 70, text
    assert "event loop has stood still" in text
    assert "in stand_still" in text
    cursor = await connection.execute("SELECT state FROM fleet.task")
    assert await cursor.fetchall() == [("RUNNING",)], "its lease ends by itself, and a reaper judges"


async def test_a_process_that_was_stopped_longer_than_the_stall_limit_goes_on(database_url: str) -> None:
    process = await start(database_url, "idle")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"LeaseGranted\n"
    assert await process.stdout.readline() == b"LeaseRenewed\n"
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 1.0)
    process.send_signal(signal.SIGCONT)
    while await process.stdout.readline() not in (b"LeaseRenewed\n", b""):
        pass
    process.send_signal(signal.SIGTERM)
    _, said = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, said.decode()
