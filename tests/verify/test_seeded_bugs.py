"""The checker finds nothing in a sound run, and finds each bug that is put into a statement.

A checker that cannot fail proves nothing.
"""

from pathlib import Path

import pytest

from fleet.postgres.database import AsyncConnection
from fleet.verify import Answer, verify
from fleet.verify.judges import JUDGES
from tests.verify.bugs import BUGS, Bug
from tests.verify.scenario import Scenario

OTHERS = ("plain", "zombie", "once", "retry", "old")  # what goes on beside the scene in which the bug shows


async def test_a_sound_run_passes_on_every_promise(
    pair: tuple[AsyncConnection, AsyncConnection], tmp_path: Path
) -> None:
    scenario = Scenario(*pair, tmp_path)
    await scenario.play()
    assert not scenario.troubles
    report = verify(tmp_path)
    assert [each.code for each in report.verdicts] == list(JUDGES)
    assert [(each.code, each.answer, each.detail) for each in report.verdicts if each.answer is not Answer.PASS] == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.breaks}: {bug.what}")
async def test_a_bug_breaks_its_promise_and_the_story_is_of_the_task_that_it_met(
    pair: tuple[AsyncConnection, AsyncConnection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    monkeypatch.setattr(bug.module, bug.statement, bug.patched())
    scenario = Scenario(*pair, tmp_path)
    await scenario.play(*OTHERS, bug.scene)

    verdict = verify(tmp_path)[bug.breaks]

    names = {str(task): name for name, task in scenario.tasks.items()}
    assert verdict.answer is Answer.FAIL, verdict
    assert names.get(verdict.task or "") == bug.task, verdict.story or verdict.detail
    assert verdict.story.startswith(f"task {verdict.task}, from ")


async def test_without_a_journal_a_sound_run_fails_nothing_and_the_rest_is_unknown(
    pair: tuple[AsyncConnection, AsyncConnection], tmp_path: Path
) -> None:
    await Scenario(*pair, tmp_path, journaled=False).play()
    report = verify(tmp_path)
    assert report.ok
    assert [each.code for each in report.verdicts if each.answer is Answer.UNKNOWN] == ["S5", "S9", "S10", "S11"]


@pytest.mark.parametrize("code", ["S2", "S3", "S4", "S6", "S7", "S15", "S17", "S20"])
async def test_without_a_journal_the_lines_and_the_final_rows_convict_too(
    pair: tuple[AsyncConnection, AsyncConnection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    bug = next(each for each in BUGS if each.breaks == code)
    monkeypatch.setattr(bug.module, bug.statement, bug.patched())
    scenario = Scenario(*pair, tmp_path, journaled=False)
    await scenario.play("plain", "zombie", bug.scene)
    verdict = verify(tmp_path)[code]
    assert verdict.answer is Answer.FAIL, verdict
    assert verdict.task == str(scenario.tasks[bug.task])


def test_every_judge_has_met_a_bug() -> None:
    assert {bug.breaks for bug in BUGS} == set(JUDGES)
