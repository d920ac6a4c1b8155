"""`fleet verify`: what it prints, and how it ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fleet.cli.failures import ExitCode, Refused
from fleet.cli.verify import verify
from fleet.postgres.database import AsyncConnection
from tests.support import submit
from tests.verify.bugs import BUGS
from tests.verify.scenario import Scenario


def command(*words: object) -> Result:
    return CliRunner().invoke(verify, [str(word) for word in words])


async def test_a_sound_run_ends_with_0_and_names_each_promise(
    pair: tuple[AsyncConnection, AsyncConnection], tmp_path: Path
) -> None:
    await Scenario(*pair, tmp_path).play("plain", "zombie")
    answer = command(tmp_path)
    assert answer.exit_code == ExitCode.OK
    heading, *rows = answer.stdout.splitlines()
    assert heading.split("\t") == ["CODE", "VERDICT", "PROMISE", "DETAIL"]
    verdicts = {row.split("\t")[0]: row.split("\t")[1] for row in rows}
    assert (verdicts["S4"], verdicts["S15"]) == ("pass", "unknown")
    assert "unknown" in answer.stderr


async def test_a_broken_run_ends_with_1_and_tells_the_story_once(
    pair: tuple[AsyncConnection, AsyncConnection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = next(each for each in BUGS if each.breaks == "S4")
    monkeypatch.setattr(bug.module, bug.statement, bug.patched())
    scenario = Scenario(*pair, tmp_path)
    await scenario.play("plain", "zombie")

    answer = command(tmp_path)
    assert answer.exit_code == ExitCode.CHECK_FAILED
    assert answer.stderr.count(f"task {scenario.tasks['zombie']}, from ") == 1
    assert "QUEUED → RUNNING" in answer.stderr

    document = json.loads(command(tmp_path, "-o", "json").stdout)
    assert document["ok"] is False
    verdict = next(each for each in document["verdicts"] if each["code"] == "S4")
    assert (verdict["answer"], verdict["task"]) == ("fail", str(scenario.tasks["zombie"]))
    assert verdict["findings"][0]["words"]


def test_a_folder_without_a_history_is_not_found(tmp_path: Path) -> None:
    refused = command(tmp_path).exception
    assert isinstance(refused, Refused)
    assert refused.code is ExitCode.NOT_FOUND


def test_a_file_that_is_no_history_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text("{}\n")
    refused = command(tmp_path).exception
    assert isinstance(refused, Refused)
    assert refused.code is ExitCode.USAGE
    assert "other.jsonl" in refused.message


@pytest.mark.parametrize("words", [(), ("folder", "--database")])
def test_either_a_folder_or_the_database_is_given(words: tuple[str, ...]) -> None:
    refused = command(*words).exception
    assert isinstance(refused, Refused)
    assert refused.code is ExitCode.USAGE


async def test_the_audit_of_a_sound_database_ends_with_0_and_of_a_damaged_one_with_1(
    connection: AsyncConnection, database_url: str
) -> None:
    task = await submit(connection)
    assert command("--database", "--database-url", database_url).exit_code == ExitCode.OK
    await connection.execute("UPDATE fleet.task SET attempt = 3")
    answer = command("--database", "--database-url", database_url, "-o", "json")
    assert answer.exit_code == ExitCode.CHECK_FAILED
    document = json.loads(answer.stdout)
    failed = [each for each in document["checks"] if each["answer"] == "fail"]
    assert [(each["check"], each["code"], each["subjects"]) for each in failed] == [("attempts", "S8", [str(task)])]
