"""The supervisor's policy, on commands that are no workers."""

import os
import signal
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from fleet.config import Settings
from fleet.events import ChildEnded, ChildStarted, DrainStarted, Event, Events
from fleet.postgres.database import Database
from fleet.worker.supervisor import HOPELESS, Command, Supervisor
from tests.support import eventually

SLEEPER = Command("sleeper", ("/bin/sleep", "600"))


async def supervise(*commands: Command) -> tuple[int, list[Event]]:
    """Run it to its end; no database is needed where nobody has a lease."""
    events, seen = Events(), list[Event]()
    events.subscribe(seen.append)
    settings = Settings()
    supervisor = Supervisor(commands, Database("postgresql://127.0.0.1:1/none", settings), settings, events)
    with anyio.fail_after(30):
        return await supervisor.run(), seen


@pytest.mark.parametrize("code", HOPELESS)
async def test_a_command_that_cannot_start_ends_the_others_with_its_exit_code(code: int) -> None:
    found, seen = await supervise(Command("broken", ("/bin/sh", "-c", f"exit {code}")), SLEEPER)
    assert found == code
    assert DrainStarted("broken cannot start") in seen
    assert sorted((event.name, event.code) for event in seen if isinstance(event, ChildEnded)) == [
        ("broken", code),
        ("sleeper", -15),
    ]


async def test_a_child_that_is_slow_to_notice_sees_that_it_is_hurried(tmp_path: Path) -> None:
    """Both signals wait for it when it comes to them: of two alike it would see one."""
    heard = tmp_path / "heard"
    program = (
        "import os, signal, sys\n"
        "def hear(number, frame):\n"
        f"    with open({str(heard)!r}, 'a') as file: print(number, file=file)\n"
        "    heard.append(number)\n"
        "heard = []\n"
        "for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, hear)\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\n"
        "while len(heard) < 2: signal.pause()\n"
    )
    events = Events()
    supervisor = Supervisor(
        [Command("slow", (sys.executable, "-c", program))], Database("postgresql://127.0.0.1:1/none", Settings()),
        Settings(), events,
    )  # fmt: skip
    started: list[ChildStarted] = []
    events.subscribe(lambda event: started.append(event) if isinstance(event, ChildStarted) else None)

    async def hurry() -> None:
        await eventually(anyio.Path(tmp_path / "ready").exists)
        os.kill(started[0].pid, signal.SIGSTOP)
        await anyio.to_thread.run_sync(os.waitid, os.P_PID, started[0].pid, os.WSTOPPED | os.WNOWAIT)
        supervisor.end("the test")
        supervisor.end("the test again")
        os.kill(started[0].pid, signal.SIGCONT)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(hurry)
            assert await supervisor.run() == 0
    assert sorted(heard.read_text().split()) == ["15", "2"]


async def test_one_that_dies_young_is_started_again_after_a_pause(tmp_path: Path) -> None:
    again = Command("again", ("/bin/sh", "-c", f"test -e {tmp_path}/once && exit 2; touch {tmp_path}/once; exit 1"))
    began = time.monotonic()
    found, seen = await supervise(again)
    assert found == 2
    assert sum(isinstance(event, ChildStarted) for event in seen) == 2
    assert time.monotonic() - began >= 0.8 * Settings().backoff_base.total_seconds()


async def test_an_open_file_is_inherited_by_the_command_that_asks_for_it_alone(tmp_path: Path) -> None:
    with (tmp_path / "facts").open("w") as file:
        program = f"import os, sys; os.write({file.fileno()}, sys.argv[1].encode()); sys.exit(2)"
        for name, inherited in (("one", (file.fileno(),)), ("other", ())):
            await supervise(
                Command(name, (sys.executable, "-c", f"try: {program}\nexcept OSError: sys.exit(2)", name), inherited)
            )
    assert (tmp_path / "facts").read_text() == "one"
