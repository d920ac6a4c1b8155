"""What the judges make of lines that no statement of ours would write, and of a few that look worse than they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.verify import Answer, verify

Write = Callable[..., None]
TASK, LEASE, OTHER = "task-1", "lease-1", "lease-2"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Append lines, a millisecond apart: `write("worker 1", "started", task=…)`."""
    count = 0

    def write(by: str, what: str, **facts: Any) -> None:
        nonlocal count
        count += 1
        with (tmp_path / f"{by}.jsonl").open("a") as file:
            file.write(json.dumps({"at": 1e9 + count / 1000, "by": by, "what": what} | facts) + "\n")

    return write


def started(attempt: int = 1, lease: str = LEASE, **more: Any) -> dict[str, Any]:
    return {"task": TASK, "attempt": attempt, "lease": lease, "name": "work", "repeatable": True} | more


def test_an_attempt_that_two_workers_started_is_no_exclusive_claim(write: Write, tmp_path: Path) -> None:
    write("worker 1", "started", **started())
    write("worker 2", "started", **started(lease=OTHER))
    assert verify(tmp_path)["S8"].answer is Answer.FAIL


def test_an_attempt_that_was_settled_under_two_leases_was_settled_twice(write: Write, tmp_path: Path) -> None:
    for by, lease in (("worker 1", LEASE), ("worker 2", OTHER)):
        write(by, "settled", task=TASK, attempt=1, lease=lease, outcome="succeeded", state="SUCCEEDED")
    verdict = verify(tmp_path)["S2"]
    assert (verdict.answer, verdict.task) == (Answer.FAIL, TASK)


def test_a_worker_that_starts_something_after_it_has_begun_to_drain_is_seen(write: Write, tmp_path: Path) -> None:
    write("worker 1", "lease_granted", lease=LEASE)
    write("worker 1", "drain", why="SIGTERM")
    write("worker 1", "started", **started())
    assert verify(tmp_path)["S18"].answer is Answer.FAIL


@pytest.mark.parametrize(
    ("outcome", "answer"), [("error", Answer.PASS), ("lost", Answer.FAIL), ("released", Answer.FAIL)]
)
def test_only_its_own_retry_excuses_a_second_start_of_what_must_not_be_repeated(
    write: Write, tmp_path: Path, outcome: str, answer: Answer
) -> None:
    write("worker 1", "started", **started(repeatable=False))
    row = {"task_id": TASK, "attempt": 1, "late": False, "lease_id": LEASE, "outcome": outcome}
    write("database", "row", table="attempt", row=row)
    write("worker 2", "started", **started(2, OTHER, repeatable=False))
    assert verify(tmp_path)["S3"].answer is answer


@pytest.mark.parametrize(
    ("error", "answer"), [("the connection broke", Answer.FAIL), ("the idempotency key is taken", Answer.UNKNOWN)]
)
def test_a_submission_called_failed_whose_key_has_a_task_is_a_lie_unless_the_key_was_taken(
    write: Write, tmp_path: Path, error: str, answer: Answer
) -> None:
    write("client", "submit", phase="invoke", op="1", name="work", args={}, key="key")
    write("client", "submit", phase="fail", op="1", error=error)
    write("database", "row", table="submission", row={"scope": "", "key": "key", "task_id": TASK})
    assert verify(tmp_path)["S17"].answer is answer


def lease_row(state: str, renewed: str, expires: str) -> dict[str, Any]:
    moments = {"renewed_at": f"2001-09-09T{renewed}+00:00", "expires_at": f"2001-09-09T{expires}+00:00"}
    return {"id": LEASE, "worker": "worker-1", "host": "a", "pid": 7, "state": state} | moments


@pytest.mark.parametrize(
    ("renewed", "expires", "answer"),
    [
        ("01:46:10", "01:46:40", Answer.PASS),
        ("01:46:20", "01:46:50", Answer.FAIL),
        ("01:50:00", "01:50:30", Answer.PASS),  # renewed in the future: the clock was set back since then
    ],
)
def test_a_lease_is_reaped_when_its_time_is_over_or_was_given_by_a_clock_that_was_wrong(
    write: Write, tmp_path: Path, renewed: str, expires: str, answer: Answer
) -> None:
    before, after = lease_row("LIVE", renewed, expires), lease_row("REAPED", renewed, expires)
    write("database", "change", n=1, began=1e9, txid=1, table="lease", old=before, new=after)  # at 01:46:40.001
    assert verify(tmp_path)["S5"].answer is answer


def test_a_run_without_anything_is_unknown_in_everything(write: Write, tmp_path: Path) -> None:
    write("worker 1", "claimed", count=0)
    assert {verdict.answer for verdict in verify(tmp_path).verdicts} == {Answer.UNKNOWN}
