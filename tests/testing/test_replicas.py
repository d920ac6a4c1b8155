"""Replicas that are processes: the quick half of what is tested of them; the other is in tests/faults/test_replicas.py."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fleet.testing.driver import ReplicaEnded
from fleet.testing.replicas import replicas
from tests.support import eventually_sync
from tests.testing import bodies
from tests.testing.bodies import APP, FLAGS, Start

ROOT = Path(__file__).parents[2]
ORPHANS = """
import os, signal, sys
from fleet.testing.replicas import replicas
with replicas("tests.testing.shop:app", 1, sys.argv[1]) as crew:
    print(crew[0].pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def start(database_url: str) -> Start:
    return lambda count, environment: replicas(APP, count, database_url, environment=environment)


@pytest.mark.fault("Death", "SIGKILL after the effect, before the settlement")
@FLAGS
def test_a_killed_replica_loses_nothing_and_repeats_only_what_may_be(
    start: Start, database_url: str, once: bool
) -> None:
    bodies.killed(start, database_url, once=once)


def test_a_drained_replica_ends_what_it_runs_and_leaves_the_rest_to_others(start: Start, database_url: str) -> None:
    bodies.drained(start, database_url)


def test_a_replica_that_cannot_start_is_named_with_its_log(database_url: str) -> None:
    expected = r"replica-0-\w+ ended with 2 .*\n.*has no 'nothing'"
    with pytest.raises(ReplicaEnded, match=expected), replicas("tests.testing.shop:nothing", 1, database_url):
        pytest.fail("it did start")


def test_what_is_done_to_replicas_is_in_the_history(database_url: str, tmp_path: Path) -> None:
    with replicas(APP, 1, database_url, environment={"FLEET_HISTORY": str(tmp_path / "run")}) as crew:
        eventually_sync(lambda: '"what": "lease_granted"' in written(tmp_path / "run"))
        crew.kill(0)
    assert '"fault": "kill"' in written(tmp_path / "run")


def test_who_has_ended_is_paused_in_vain(database_url: str) -> None:
    with replicas(APP, 1, database_url) as crew:
        assert crew.kill(0) == -signal.SIGKILL
        crew.pause(0)
        assert crew[0].ended == -signal.SIGKILL


def written(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.jsonl"))


def test_replicas_end_when_the_process_that_started_them_is_killed(database_url: str) -> None:
    """Nobody is left to stop them, and their proxy is gone, too: they drain by themselves."""
    command = [sys.executable, "-c", ORPHANS, database_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    orphan = int(done.stdout)
    try:
        eventually_sync(lambda: not runs(orphan), 60)
    finally:
        with suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
