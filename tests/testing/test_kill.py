"""`kill_one_replica`: a worker is ended by SIGKILL inside a user's handler, and the test is told what became of the task."""

from pathlib import Path

import pytest

from fleet.errors import ConfigurationError
from fleet.task import State
from fleet.testing import kill_one_replica
from fleet.verify import verify

APP = "tests.testing.shop:app"
SLACK_SECONDS = 3.0  # for a machine that has more to do than it can: the promise is for one that has not


@pytest.mark.fault("Death", "SIGKILL after the effect, before the settlement")
def test_what_must_not_be_repeated_is_in_doubt_and_was_done_once(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = kill_one_replica(APP, "charge", arguments={"order": 7}, database_url=database_url, history=tmp_path)
    assert (killed.state, killed.failure_code, killed.starts) == (State.FAILED, "lease_expired", 1)
    assert [effect.args for effect in killed.effects] == [{"order": 7}]
    assert killed.effects[0].pid == killed.pid
    assert killed.seconds < killed.seconds_max + SLACK_SECONDS
    assert killed.seconds_max == pytest.approx(2.8)
    assert not killed.late
    assert [each["outcome"] for each in killed.attempts] == ["lost"]
    assert str(killed.lease) in str(killed.failure_reason)
    story = killed.story()
    assert story in capsys.readouterr().out
    assert "fault=kill" in story
    assert "lease_expired" in story
    answers = {verdict.code: verdict.answer.value for verdict in verify(tmp_path).verdicts}
    assert "fail" not in answers.values(), answers
    assert answers["S3"] == "pass"


@pytest.mark.fault("Death", "SIGKILL inside the handler")
def test_what_may_be_repeated_is_run_again_by_another(database_url: str) -> None:
    killed = kill_one_replica(
        APP, "count", arguments={"text": "to be or not"}, when="entered", database_url=database_url
    )
    assert (killed.state, killed.failure_code, killed.starts) == (State.SUCCEEDED, None, 2)
    assert [effect.attempt for effect in killed.effects] == [2]
    assert killed.effects[0].pid != killed.pid
    assert killed.seconds < killed.seconds_max + SLACK_SECONDS


@pytest.mark.fault("Death", "SIGKILL after the effect, before the settlement")
def test_a_point_in_the_users_own_code_is_where_it_is_killed(database_url: str) -> None:
    killed = kill_one_replica(APP, "charge", arguments={"order": 8}, point="charge.paid", database_url=database_url)
    assert killed.point == "charge.paid"
    assert (killed.state, killed.failure_code, killed.starts) == (State.FAILED, "lease_expired", 1)
    assert len(killed.effects) == 1


def test_mistakes_are_named_before_anything_is_killed(database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="at least two replicas"):
        kill_one_replica(APP, "charge", database_url=database_url, replicas=1)
    with pytest.raises(ConfigurationError, match="has no task 'chrage'; it has: charge, count"):
        kill_one_replica(APP, "chrage", database_url=database_url)
