"""What came out of a demo, in figures, and which of the promises they break, if any."""

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from fleet.demo.questions import Counts, Held, Holder
from fleet.task import State

GRACE = timedelta(seconds=3)  # so much later than the TTL a reaper may come


@dataclass(frozen=True, slots=True)
class Doubt:
    """A publish task whose worker died: `in_outbox` tells what a person finds who looks outside the database."""

    task: str
    title: str
    in_outbox: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The figures. `recovery_seconds`: from the kill until a reaper had settled the last task of the killed worker."""

    tasks: int
    succeeded: int
    failed: int
    requeued: int
    lease_expired: int
    lost: int
    published_twice: int
    killed_worker: str
    recovery_seconds: float
    seconds: float
    in_doubt: tuple[Doubt, ...]
    broken: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `-o json` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was found when everything had ended, before anybody judges it."""

    submitted: int
    counts: Counts
    victim: Holder
    held: tuple[Held, ...]
    published: frozenset[UUID]  # the publish tasks that succeeded
    outbox: Counter[str]  # how often the outbox holds a task
    ttl: timedelta

    @property
    def repeatable(self) -> list[Held]:
        return [task for task in self.held if task.name == "analyze"]

    @property
    def others(self) -> list[Held]:
        return [task for task in self.held if task.name != "analyze"]

    @property
    def requeued(self) -> int:
        return sum(1 for task in self.held if task.at is not None and task.failure_code is None)

    @property
    def recovery(self) -> timedelta:
        return max(task.at for task in self.held if task.at is not None) - self.victim.now

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        return tuple(
            Doubt(str(task.id), task.title, self.outbox[str(task.id)] > 0)
            for task in self.held
            if task.failure_code == "lease_expired"
        )


def report(facts: Facts, exit_codes: dict[str, int | None], seconds: float) -> Report:
    """Put the figures together and compare them with the promises."""
    counts = facts.counts
    return Report(
        tasks=facts.submitted,
        succeeded=counts.succeeded,
        failed=counts.failed,
        requeued=facts.requeued,
        lease_expired=counts.lease_expired,
        lost=facts.submitted - counts.terminal,
        published_twice=sum(1 for times in facts.outbox.values() if times > 1),
        killed_worker=facts.victim.worker,
        recovery_seconds=round(facts.recovery.total_seconds(), 2),
        seconds=round(seconds, 2),
        in_doubt=facts.doubts,
        broken=(*broken(facts), *(f"workers drain: {name} did not" for name, code in exit_codes.items() if code != 0)),
    )


def broken(facts: Facts) -> list[str]:
    """Return the promises that do not hold, each with its figures."""
    counts, others, limit = facts.counts, facts.others, facts.ttl + GRACE
    unpublished = [task for task in facts.published if not facts.outbox[str(task)]]
    twice = [task for task, times in facts.outbox.items() if times > 1]
    promises = {
        f"no task is lost: {facts.submitted} submitted, {counts.tasks} found, {counts.terminal} ended": (
            facts.submitted == counts.tasks == counts.terminal
        ),
        f"each task succeeded or failed: {counts.succeeded} + {counts.failed} of {facts.submitted}": (
            counts.succeeded + counts.failed == facts.submitted
        ),
        f"exactly the {len(others)} publish tasks of the killed worker failed, with lease_expired: "
        f"{counts.lease_expired} did, {counts.failed} failed in all": (
            len(others) == counts.failed == counts.lease_expired == len(facts.doubts)
        ),
        f"each of its {len(facts.repeatable)} analyze tasks was put back, and succeeded then: {facts.requeued} were": (
            1 <= facts.requeued == len(facts.repeatable)
            and all(task.state is State.SUCCEEDED for task in facts.repeatable)
        ),
        f"nothing is published twice: {len(twice)} tasks were": not twice,
        f"what succeeded is published: {len(unpublished)} tasks are not": not unpublished,
        f"its tasks are settled within {limit.total_seconds():g} s: {facts.recovery.total_seconds():.1f} s": (
            facts.recovery <= limit
        ),
    }
    return [promise for promise, holds in promises.items() if not holds]
