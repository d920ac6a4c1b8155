"""Clocks that are wrong: the database's steps by an hour, a worker's is an hour off. Nobody alive is reaped, the dead are."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pytest

from fleet import embedded
from fleet.embedded import Server, temporary
from fleet.postgres.database import AsyncConnection
from tests.faults.own_server import database_url
from tests.faults.steps import (
    CALM,
    LEASES,
    NOW,
    OPEN,
    SLACK_SECONDS,
    bound,
    keep_recovery,
    play,
    recovered,
)
from tests.processes.crew import Crew, Sink, leases_of, terminal, until, value
from tests.processes.load import load
from tests.processes.oracle import judge_all
from tests.processes.stage import Stage
from tests.support import row, submit

__all__ = ["database_url"]

HOUR = 3600
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
SKEW = "SELECT extract(epoch FROM clock_timestamp())::float8"

if LIBRARY is None:
    pytest.skip("NOT TESTED HERE: install libfaketime (apt-get install libfaketime)", allow_module_level=True)


class Clock:
    """The clock of a server, this machine's plus an offset that the test steps."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    def step(self, seconds: float) -> None:
        """Set the offset from now on: written aside and renamed, so that nobody reads half of it."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+f}\n", encoding="ascii")
        fresh.chmod(0o644)
        fresh.rename(self._file)


@pytest.fixture(scope="module")
def server(clock: Clock, clock_file: Path) -> Iterator[Server]:
    """A server that takes the time from our clock; what it measures by (CLOCK_MONOTONIC) is left alone."""
    environment = {
        "LD_PRELOAD": str(LIBRARY), "FAKETIME_TIMESTAMP_FILE": str(clock_file), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    with temporary({"max_connections": "100"}) as server:
        server.stop_immediately()
        with patch.dict(embedded._SERVER_ENVIRONMENT, environment):
            yield server.start()


@pytest.fixture(scope="module")
def clock_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="clock-") as folder:
        Path(folder).chmod(0o755)  # the server may run under another account
        yield Path(folder, "offset")


@pytest.fixture(scope="module")
def clock(clock_file: Path) -> Clock:
    return Clock(clock_file)


@pytest.mark.timeout(300)
@pytest.mark.fault("Database", "the database's clock steps")
async def test_a_database_whose_clock_steps_by_an_hour_forth_and_back_takes_no_lease_from_anybody(
    crew: Crew, clock: Clock, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    clock.step(0)
    workers = await crew.workers(2, slots=4, ttl="3s")
    leases = await value(watcher, LEASES)
    once = [await submit(watcher, name=name, max_attempts=1) for name in ("act_once", "act_in_thread_once")]
    for task in once:
        await stage.arrival(task)
    tasks: list[UUID] = []
    for offset in (HOUR, 0, -HOUR, 0):
        clock.step(offset)
        assert abs(await value(watcher, SKEW) - time.time() - offset) < SLACK_SECONDS  # it did step
        renewed = "SELECT bool_and(abs(extract(epoch FROM clock_timestamp() - renewed_at)) < 1) FROM fleet.lease"
        await until(watcher, renewed)
        tasks += [await submit(watcher, name=name) for name in ("quick", "quick_once") * 10]
        for task in tasks:
            assert await terminal(watcher, task) == "SUCCEEDED"
        began = await value(watcher, SKEW)
        await until(
            watcher, f"{SKEW} - %s > %s", began, 1.5 * CALM.total_seconds()
        )  # time enough for every reaper to err
        assert await value(watcher, LEASES) == leases
    for task in once:
        play(await stage.arrival(task))
    for task in [*tasks, *once]:
        assert await terminal(watcher, task) == "SUCCEEDED"
        found = await row(watcher, task)
        assert (found["attempt"], found["losses"]) == (1, 0)
    assert [worker.popen.poll() for worker in workers] == [None, None]
    await judge_all(watcher, sink)


@pytest.mark.fault("Database", "the database's clock steps")
@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_worker_that_dies_right_before_the_database_clock_steps_is_reaped_in_time(
    crew: Crew, clock: Clock, stage: Stage, watcher: AsyncConnection, sink: Sink, step: int
) -> None:
    clock.step(0)
    victim = await crew.worker(slots=2)
    once = await submit(watcher, name="act_once")
    await stage.arrival(once)
    await crew.worker(slots=2)
    victim.kill()
    killed_at = time.monotonic()
    clock.step(step)
    assert abs(await value(watcher, SKEW) - time.time() - step) < SLACK_SECONDS
    assert await terminal(watcher, once) == "FAILED"
    seconds = time.monotonic() - killed_at
    keep_recovery("the database's clock steps by an hour as a worker dies", seconds)
    assert seconds < bound() + SLACK_SECONDS
    assert (await row(watcher, once))["failure_code"] == "lease_expired"
    await judge_all(watcher, sink)


@pytest.mark.fault("Database", "a worker's clock is an hour off")
async def test_workers_whose_own_clocks_are_an_hour_off_work_and_die_like_all(
    crew: Crew,
    clock: Clock,
    database_url: str,
    stage: Stage,
    watcher: AsyncConnection,
    sink: Sink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock.step(0)
    monkeypatch.setenv("LD_PRELOAD", str(LIBRARY))
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    wrong = []
    for offset in (HOUR, -HOUR):
        monkeypatch.setenv("FAKETIME", f"{offset:+d}")
        wrong.append(await crew.worker(slots=2, ttl="3s"))
        (lease,) = await leases_of(watcher, wrong[-1].pid)
        assert abs((lease.int >> 80) / 1000 - time.time() - offset) < 60  # its id tells what its clock said
    for variable in ("LD_PRELOAD", "FAKETIME"):
        monkeypatch.delenv(variable)
    held = [await submit(watcher, name=name) for name in ("act", "act_once") * 2]
    for task in held:
        await stage.arrival(task)
    right = await crew.worker(slots=4, ttl="3s")
    leases = await value(watcher, LEASES)
    async with load(database_url, milliseconds=20) as submitted:
        await submitted.more(100)
    await until(watcher, OPEN, is_=lambda count: count == len(held))
    began = await value(watcher, SKEW)
    await until(watcher, f"{SKEW} - %s > %s", began, 1.5 * CALM.total_seconds())
    assert await value(watcher, LEASES) == leases
    stage.then = play
    killed_at = await value(watcher, NOW)
    for worker in wrong:
        worker.kill()
    await recovered(watcher, "a worker's clock is an hour off", held, killed_at, CALM.total_seconds())
    for task in held:
        await terminal(watcher, task)
    assert [(await row(watcher, task))["state"] for task in held] == ["SUCCEEDED", "FAILED"] * 2
    assert right.popen.poll() is None
    await judge_all(watcher, sink)
