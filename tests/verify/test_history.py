"""What is written down can be read back, whoever died meanwhile."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from fleet.events import Events, LeaseGranted, TaskFenced, TaskStarted
from fleet.postgres import journal, settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Released, Settlement, Succeeded
from fleet.verify.dump import dump, dump_sync
from fleet.verify.history import Recorder, lines, record_events
from tests.support import claim_some, new_lease, submit


def test_lines_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "worker 1")
    recorder.write("claimed", count=3)
    (line,) = lines(tmp_path)
    assert {key: line[key] for key in ("by", "what", "count")} == {"by": "worker 1", "what": "claimed", "count": 3}


def test_what_was_written_survives_sigkill(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from fleet.verify.history import Recorder;"
        "Recorder(sys.argv[1], 'worker').write('claimed', count=1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [line["what"] for line in lines(tmp_path)] == ["claimed"]


def test_a_last_line_that_was_cut_short_is_passed_over_and_another_is_not(tmp_path: Path) -> None:
    path, whole = tmp_path / "worker.jsonl", '{"at": 1.5, "by": "worker 1", "what": "claimed"}\n'
    path.write_text(whole + whole[:20])
    assert [line["what"] for line in lines(tmp_path)] == ["claimed"]
    for other in (whole[:20] + "\n", '{"level": "info"}\n', "[]\n"):
        path.write_text(other + whole)
        with pytest.raises(ValueError, match="line 1 of"):
            list(lines(tmp_path))


async def test_a_worker_writes_down_its_attempts(connection: AsyncConnection, tmp_path: Path) -> None:
    lease = await new_lease(connection)
    task_id = await submit(connection, args='{"text": "a"}')
    (task,) = await claim_some(connection, lease)
    events = Events()
    record_events(events, tmp_path, "worker 7", handlers=["work"])
    for event in (LeaseGranted(lease), TaskStarted(task), TaskFenced(Settlement(task, Succeeded("1")))):
        events.emit(event)
    granted, started, fenced = lines(tmp_path)
    assert (granted["handlers"], granted["ttl"], granted["lease"]) == (["work"], 2.0, str(lease.id))
    assert (started["task"], started["attempt"], started["args"]) == (str(task_id), 1, {"text": "a"})
    assert (fenced["what"], fenced["outcome"], fenced["by"]) == ("fenced", "succeeded", "worker 7")


async def test_the_journal_holds_every_change_with_what_was_before(connection: AsyncConnection, tmp_path: Path) -> None:
    await journal.install(connection)
    await journal.install(connection)
    lease = await new_lease(connection)
    task_id = await submit(connection, args=json.dumps({"text": "x" * 3000}))
    (task,) = await claim_some(connection, lease)
    await settle.give_back(connection, lease, [Settlement(task, Released("later"))])
    await dump(connection, tmp_path)
    changes = [line for line in lines(tmp_path) if line["what"] == "change" and line["table"] == "task"]
    assert [(line["old"] or {}).get("state") for line in changes] == [None, "QUEUED", "RUNNING"]
    assert [line["new"]["state"] for line in changes] == ["QUEUED", "RUNNING", "QUEUED"]
    assert not any("args" in line["new"] for line in changes), "arguments beyond 2 KB are left out"
    assert all(line["began"] <= line["at"] for line in changes)
    history = [line for line in lines(tmp_path) if line["what"] == "change" and line["table"] == "attempt"]
    assert history[0]["txid"] == changes[2]["txid"], "what commits together has one transaction"
    assert [line["row"]["id"] for line in lines(tmp_path) if line["table"] == "task" and line["what"] == "row"] == [
        str(task_id)
    ]


async def test_a_dump_needs_no_journal_and_replaces_the_one_before(
    connection: AsyncConnection, database_url: str, tmp_path: Path
) -> None:
    await submit(connection)
    first = await dump(connection, tmp_path)
    with psycopg.connect(database_url) as plain:
        path = dump_sync(plain, tmp_path)
    assert path == first == tmp_path / "database.jsonl"
    assert [line["table"] for line in lines(tmp_path) if line["what"] == "row"] == ["task"]


async def test_the_journal_can_be_taken_away(connection: AsyncConnection, tmp_path: Path) -> None:
    await journal.install(connection)
    await journal.remove(connection)
    await submit(connection)
    await dump(connection, tmp_path)
    assert {line["what"] for line in lines(tmp_path)} == {"row"}
