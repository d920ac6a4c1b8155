"""What must hold of the rows, the history, the counters and the world outside, whatever was done to the workers."""

from collections import Counter, defaultdict
from typing import Any, NamedTuple
from uuid import UUID

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import Sink
from tests.support import counters


class Story(NamedTuple):
    """One task with everything that is known of it."""

    task: dict[str, Any]
    ended: dict[int, str]  # attempt → how it ended, where it did not simply succeed
    late: dict[int, str]  # attempt → the report that was refused
    starts: list[int]
    effects: list[int]


async def stories(watcher: AsyncConnection, sink: Sink) -> list[Story]:
    cursor = await watcher.execute("SELECT * FROM fleet.task ORDER BY id")
    columns = [column.name for column in cursor.description or ()]
    tasks = [dict(zip(columns, line, strict=True)) for line in await cursor.fetchall()]
    ended: dict[UUID, dict[int, str]] = defaultdict(dict)
    late: dict[UUID, dict[int, str]] = defaultdict(dict)
    for task, attempt, is_late, outcome in await (
        await watcher.execute("SELECT task_id, attempt, late, outcome FROM fleet.attempt")
    ).fetchall():
        (late if is_late else ended)[task][attempt] = outcome
    starts, effects = sink.by_task("start"), sink.by_task("effect")
    return [Story(task, ended[task["id"]], late[task["id"]], starts[task["id"]], effects[task["id"]]) for task in tasks]


def judge(story: Story) -> None:
    """Fail unless one task's story is possible: one valid end, no forbidden repeat, one budget, attempts without a gap."""
    task, outcomes = story.task, Counter(story.ended.values())
    attempts = list(range(1, task["attempt"] + 1))
    not_ended = 1 if task["state"] in ("SUCCEEDED", "RUNNING") else 0  # the last attempt has no line of its own
    assert sorted(story.ended) == attempts[: len(attempts) - not_ended], story
    assert task["losses"] == outcomes["lost"], story
    assert task["failures"] == outcomes["error"], story
    assert task["losses"] <= task["max_losses"], story
    assert task["losses"] + task["failures"] <= task["max_attempts"], story
    assert len(set(story.starts)) == len(story.starts), f"one attempt was started twice: {story}"
    assert set(story.starts) <= set(attempts), story
    assert set(story.effects) <= set(story.starts), story
    assert set(story.late) <= set(attempts), story
    if task["name"].endswith("_once"):
        assert len(story.starts) <= 1, f"what must not be repeated was: {story}"
        assert len(story.effects) <= 1, story
        assert outcomes["lost"] == (task["failure_code"] == "lease_expired"), story
    if task["failure_code"] == "crash_budget_exhausted":
        assert task["losses"] == task["max_losses"] or sum(outcomes.values()) >= task["max_attempts"], story
    assert (task["state"] == "FAILED") == (task["failure_code"] is not None), story
    assert (task["state"] == "RUNNING") == (task["lease_id"] is not None), story


async def judge_all(watcher: AsyncConnection, sink: Sink) -> list[Story]:
    """Judge every task, and the counters against the rows. Returns the stories."""
    told = await stories(watcher, sink)
    for story in told:
        judge(story)
    counted: Counter[tuple[str, str]] = Counter()
    for (name, _, reason), number in (await counters(watcher)).items():
        counted[name, reason] += number
    failed = Counter(story.task["failure_code"] for story in told if story.task["state"] == "FAILED")
    lost = sum(story.task["losses"] for story in told)
    reaped = await (await watcher.execute("SELECT count(*) FROM fleet.lease WHERE state = 'REAPED'")).fetchone()
    assert reaped is not None
    expected = Counter(
        {("dead_letters", code): number for code, number in failed.items()}
        | {
            ("reclaims", ""): lost - failed["lease_expired"] - failed["crash_budget_exhausted"],
            ("lease_expirations", ""): reaped[0],
            ("fence_rejections", ""): sum(len(story.late) for story in told),
        }
    )
    assert +counted == +expected
    return told
