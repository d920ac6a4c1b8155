"""The world outside: it numbers what reaches it, and loses nothing of a process that is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from fleet import Context
from fleet.errors import ConfigurationError
from fleet.testing.sink import VARIABLE, Sink, report

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal
from uuid import UUID
from fleet import Context
from fleet.testing.sink import report
report(Context(task_id=UUID(os.environ["TASK"]), name="charge", queue="default", attempt=2), order=7)
os.kill(os.getpid(), signal.SIGKILL)
"""


def context(task: UUID | None = None) -> Context:
    return Context(task_id=task or uuid4(), name="charge", queue="default", attempt=1)


@pytest.mark.parametrize("host", [None, "127.0.0.1"], ids=["unix", "tcp"])
def test_effects_are_numbered_over_all_reporters_without_gap_or_repeat(
    monkeypatch: pytest.MonkeyPatch, host: str | None
) -> None:
    numbers: list[list[int]] = [[] for _ in range(4)]
    with Sink(host=host) as sink:
        monkeypatch.setenv(VARIABLE, sink.address)
        threads = [
            threading.Thread(target=lambda mine=mine: mine.extend(report(context(), i=i) for i in range(25)))
            for mine in numbers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [effect.n for effect in sink.effects] == list(range(1, 101))
    assert sorted(n for mine in numbers for n in mine) == list(range(1, 101))
    assert all(mine == sorted(mine) for mine in numbers)


def test_what_was_reported_before_a_sigkill_is_there(tmp_path: Path) -> None:
    task = uuid4()
    with Sink(history=tmp_path) as sink:
        environment = os.environ | sink.environment | {"TASK": str(task), "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-c", KILLED], env=environment)
        assert process.wait(30) == -signal.SIGKILL
        (effect,) = sink.of(task)
    assert (effect.n, effect.attempt, effect.name, effect.args) == (1, 2, "charge", {"order": 7})
    assert effect.pid == process.pid
    (line,) = [json.loads(text) for path in tmp_path.glob("*.jsonl") for text in path.read_text().splitlines()]
    assert (line["by"], line["what"], line["task"], line["n"]) == ("sink", "effect", str(task), 1)


def test_half_an_effect_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sink() as sink:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(sink.address.removeprefix("unix:"))
            channel.sendall(b'{"task": "')
        monkeypatch.setenv(VARIABLE, sink.address)
        assert report(context(), order=1) == 1
        assert len(sink.effects) == 1


def test_a_report_to_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match="FLEET_SINK"):
        report(context(), order=1)


def test_a_wait_for_effects_that_do_not_come_says_so() -> None:
    with Sink() as sink, pytest.raises(TimeoutError, match="2 effects in the sink"):
        sink.wait(2, seconds=0.05)
