"""What systemd is told: that a process is ready, that its event loop turns, whatever the database does, that it drains."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.postgres.database import AsyncConnection
from fleet.testing.proxy import Proxy
from tests.faults.steps import play
from tests.faults.systemd import Manager, manager
from tests.http.running import Running
from tests.processes.crew import Crew, terminal
from tests.processes.stage import Stage
from tests.support import submit

BLOCKED_SECONDS = 2.5
MARGIN_SECONDS = 0.5


@pytest.fixture
def systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """What this test starts believes to be a service."""
    with manager(folder) as (opened, given):
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        yield opened


async def test_a_worker_is_ready_with_its_lease_feeds_the_watchdog_and_tells_its_drain(
    systemd: Manager, crew: Crew
) -> None:
    worker = await crew.worker()
    (ready,) = await systemd.tells("READY=1")
    assert ready.pid == worker.pid
    assert not any("WATCHDOG=1" in each.lines for each in systemd.told if each.at < ready.at)
    await systemd.tells("WATCHDOG=1", 3)
    worker.send(signal.SIGTERM)
    (stopping,) = await systemd.tells("STOPPING=1")
    assert stopping.lines[1] == "STATUS=drains: received SIGTERM"
    assert await worker.ended() == 0


async def test_the_watchdog_is_fed_while_the_database_is_away(systemd: Manager, crew: Crew, database_url: str) -> None:
    with Proxy(database_url) as proxy:
        worker = crew.start(ttl="2s", database_url=proxy.url)
        await systemd.tells("READY=1")
        proxy.freeze("both")
        (doubt,) = await systemd.tells("STATUS=the lease")
        assert "could not be renewed" in doubt.lines[0]
        await systemd.tells("WATCHDOG=1", 10)
        assert worker.popen.poll() is None


async def test_the_watchdog_starves_while_the_event_loop_stands_still(
    systemd: Manager, crew: Crew, stage: Stage, watcher: AsyncConnection
) -> None:
    await crew.worker(ttl="6s")
    task = await submit(watcher, name="act")
    actor = await stage.arrival(task)
    await systemd.tells("WATCHDOG=1")
    await actor.order(f"block {BLOCKED_SECONDS}")
    blocked = time.monotonic()
    systemd.read()
    (woken,) = await systemd.tells("WATCHDOG=1")
    assert woken.at - blocked > BLOCKED_SECONDS - MARGIN_SECONDS
    play(actor)
    assert await terminal(watcher, task) == "SUCCEEDED"


async def test_a_supervisor_speaks_for_its_workers_which_do_not(systemd: Manager, crew: Crew) -> None:
    supervisor = crew.start("supervise", "2")
    (ready, *_) = await systemd.tells("READY=1")
    await systemd.tells("WATCHDOG=1", 3)
    supervisor.send(signal.SIGTERM)
    await systemd.tells("STOPPING=1")
    assert await supervisor.ended() == 0
    systemd.read()
    assert {each.pid for each in systemd.told} == {ready.pid} == {supervisor.pid}


async def test_the_api_is_ready_when_it_listens(systemd: Manager, database_url: str, tmp_path: Path) -> None:
    with Running(tmp_path, database_url) as api:
        (ready,) = await systemd.tells("READY=1")
        assert ready.pid == api.process.pid
        await systemd.tells("WATCHDOG=1", 3)
        api.process.send_signal(signal.SIGTERM)
        await systemd.tells("STOPPING=1")
        assert api.ended() == 0
