"""The example application: what its tasks are declared as, and what they do."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

import fleet.demo
from fleet.app import Fleet
from fleet.context import Context
from fleet.demo import outbox
from fleet.demo.tasks import PACE, analyze, app, publish

TEXT = "to be or not to be"


@pytest.fixture(autouse=True)
def outbox_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(outbox.VARIABLE, str(tmp_path / "outbox"))
    monkeypatch.delenv(PACE, raising=False)
    return tmp_path / "outbox"


def test_the_package_gives_the_app() -> None:
    assert fleet.demo.app is app
    assert isinstance(app, Fleet)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        fleet.demo.other  # noqa: B018


def test_only_analyze_may_be_done_twice() -> None:
    assert {name: handler.idempotent for name, handler in app.handlers.items()} == {"analyze": True, "publish": False}


def test_analyze_needs_no_title() -> None:
    handler = app.handlers["analyze"]
    assert json.loads(handler.encode({"text": TEXT}, 1000)) == {"text": TEXT}
    assert analyze(text=TEXT) == analyze(text=TEXT, title="Hamlet")
    assert analyze(text=TEXT)["words"] == 6


async def test_publish_adds_one_line_a_call(outbox_path: Path) -> None:
    ids = [uuid4(), uuid4()]
    for task_id in ids:
        context = Context(task_id=task_id, name="publish", queue="default", attempt=1)
        assert (await publish.handler.function(context, title="Hamlet", text=TEXT))["words"] == 6
    lines = outbox.read(outbox_path)
    assert [line["task"] for line in lines] == [str(task_id) for task_id in ids]
    assert lines[0] | {"task": ""} == {"task": "", "title": "Hamlet", **analyze(text=TEXT)}


def test_nobody_else_reads_the_outbox(outbox_path: Path) -> None:
    outbox.append({})
    assert outbox_path.stat().st_mode & 0o777 == 0o600


def test_an_outbox_that_nobody_wrote_to_is_empty(outbox_path: Path) -> None:
    assert outbox.read(outbox_path) == []


def test_an_outbox_is_not_written_through_a_link(outbox_path: Path, tmp_path: Path) -> None:
    outbox_path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        outbox.append({})
