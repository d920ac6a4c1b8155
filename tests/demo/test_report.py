"""Figures that break a promise are called so; figures that keep all are not."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from fleet.demo.questions import Counts, Held, Holder
from fleet.demo.report import Facts, broken, report
from fleet.demo.steps import Finished, Killed, Settled
from fleet.demo.story import conclude, explain
from fleet.task import State

KILLED_AT = datetime(2030, 1, 1, tzinfo=UTC)
VICTIM = Holder(uuid4(), "worker-2", 4711, KILLED_AT)
AGAIN = Held(uuid4(), "analyze", "one", State.SUCCEEDED, 2, None, KILLED_AT + timedelta(seconds=3.1))
REACHED = Held(uuid4(), "publish", "two", State.FAILED, 1, "lease_expired", KILLED_AT + timedelta(seconds=3.2))
UNREACHED = Held(uuid4(), "publish", "three", State.FAILED, 1, "lease_expired", KILLED_AT + timedelta(seconds=3.2))
DONE = uuid4()
FACTS = Facts(
    submitted=10,
    counts=Counts(tasks=10, terminal=10, succeeded=8, failed=2, lease_expired=2),
    victim=VICTIM,
    held=(AGAIN, REACHED, UNREACHED),
    published=frozenset({DONE}),
    outbox=Counter([str(DONE), str(REACHED.id)]),
    ttl=timedelta(seconds=3),
)


def test_kept_promises_give_a_report_without_complaint() -> None:
    found = report(FACTS, {"worker-1": 0}, 12.345)
    assert found.broken == ()
    assert (found.tasks, found.succeeded, found.failed, found.requeued, found.lease_expired) == (10, 8, 2, 1, 2)
    assert (found.lost, found.published_twice, found.killed_worker) == (0, 0, "worker-2")
    assert (found.recovery_seconds, found.seconds) == (3.2, 12.35)
    assert [(doubt.title, doubt.in_outbox) for doubt in found.in_doubt] == [("two", True), ("three", False)]
    assert "BROKEN" not in "\n".join(conclude(found))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(FACTS, submitted=11), "no task is lost: 11 submitted, 10 found, 10 ended"),
        (replace(FACTS, counts=Counts(10, 9, 7, 2, 2)), "no task is lost: 10 submitted, 10 found, 9 ended"),
        (replace(FACTS, counts=Counts(10, 10, 7, 2, 2)), "each task succeeded or failed: 7 + 2 of 10"),
        (replace(FACTS, counts=Counts(10, 10, 7, 3, 2)), "exactly the 2 publish tasks of the killed worker failed"),
        (replace(FACTS, counts=Counts(10, 10, 7, 3, 3)), "exactly the 2 publish tasks of the killed worker failed"),
        (replace(FACTS, held=(REACHED, UNREACHED)), "each of its 0 analyze tasks was put back"),
        (replace(FACTS, held=(AGAIN._replace(state=State.QUEUED), REACHED, UNREACHED)), "succeeded then"),
        (replace(FACTS, held=(AGAIN, REACHED, UNREACHED._replace(failure_code=None))), "exactly the 2 publish tasks"),
        (replace(FACTS, outbox=FACTS.outbox + Counter([str(DONE)])), "nothing is published twice: 1 tasks were"),
        (replace(FACTS, published=frozenset({uuid4(), DONE})), "what succeeded is published: 1 tasks are not"),
        (replace(FACTS, ttl=timedelta(seconds=0.1)), "its tasks are settled within 3.1 s: 3.2 s"),
    ],
)
def test_a_broken_promise_is_named_with_its_figures(facts: Facts, words: str) -> None:
    assert any(words in promise for promise in broken(facts))
    assert any(words in line for line in conclude(report(facts, {}, 1.0)) if line.startswith("BROKEN"))


def test_a_worker_that_ends_badly_breaks_a_promise() -> None:
    found = report(FACTS, {"worker-1": 0, "worker-3": 70, "worker-4": None}, 1.0)
    assert found.broken == ("workers drain: worker-3 did not", "workers drain: worker-4 did not")


def test_a_task_that_has_not_ended_is_not_called_done() -> None:
    lines = explain(Finished(replace(FACTS, counts=Counts(10, 9, 7, 2, 2))))
    assert lines[0] == "Not every task has ended: 9 of 10."
    assert not any("Nothing was lost" in line for line in lines)


def test_the_story_counts_what_the_worker_held() -> None:
    assert "worker-2 (pid 4711) was killed by SIGKILL while it was running 1 analyze and 2 publish tasks." in explain(
        Killed(VICTIM, FACTS.held)
    )
    lines = explain(Settled(VICTIM, FACTS.held, ("worker-1",), timedelta(seconds=3.21)))
    assert lines[0].startswith("3.2 s after the kill its lease had run out: worker-1 noticed")
    assert "1 analyze task went back" in lines[1]
    assert "2 publish tasks became FAILED, lease_expired" in lines[2]
