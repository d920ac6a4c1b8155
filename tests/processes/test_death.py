"""A worker dies, at each point of a task's life: idempotent → run again, once valid; else → FAILED, for a person."""

import signal
from typing import Any
from uuid import UUID

import pytest

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import Crew, Sink, terminal, until, value, waits_for_lock
from tests.processes.stage import Stage
from tests.support import counters, history, row, submit

PATIENT: dict[str, Any] = {
    "lock_timeout": "1800ms",
    "statement_timeout": "1900ms",
}  # so that the test can hold a statement


async def submit_both(watcher: AsyncConnection, suffix: str = "", queue: str = "default") -> tuple[UUID, UUID]:
    """One task that may be repeated, and one that may not (but has attempts left, were it its handler's wish).

    Both appear at once, so that one claim takes both.
    """
    async with watcher.transaction():
        repeatable = await submit(watcher, name=f"act{suffix}", queue=queue)
        once = await submit(watcher, name=f"act{suffix}_once", queue=queue)
    return repeatable, once


async def warm(watcher: AsyncConnection) -> None:
    """Have the worker prepare its settling statements: from now on each is one message, commit and all."""
    for name in ("quick", "retried"):
        assert await terminal(watcher, await submit(watcher, name=name)) == "SUCCEEDED"


async def runs_again(watcher: AsyncConnection, stage: Stage, task: UUID) -> None:
    """The second attempt happens, and its completion alone is valid."""
    actor = await stage.arrival(task, 2)
    await actor.order("effect")
    actor.tell("return 2")
    assert await terminal(watcher, task) == "SUCCEEDED"
    found = await row(watcher, task)
    assert (found["attempt"], found["losses"], found["failures"], found["result"]) == (2, 1, 0, 2)
    assert await history(watcher, task) == [(1, False, "lost")]


async def fails_unknown(watcher: AsyncConnection, task: UUID) -> None:
    """Nobody knows what it did outside: FAILED, once and for all."""
    assert await terminal(watcher, task) == "FAILED"
    found = await row(watcher, task)
    assert (found["failure_code"], found["attempt"], found["losses"]) == ("lease_expired", 1, 1)
    assert found["failure_reason"].startswith("worker exited before completion: lease ")
    assert await history(watcher, task) == [(1, False, "lost")]


@pytest.mark.fault("Death", "SIGKILL of an idle worker")
async def test_an_idle_worker_that_is_killed_costs_its_lease_and_nothing_else(
    crew: Crew, watcher: AsyncConnection
) -> None:
    victim, survivor = await crew.workers(2)
    lease = await crew.lease_of(victim)
    await until(watcher, "SELECT idle FROM fleet.lease WHERE id = %s", lease)
    victim.kill()
    await until(watcher, "SELECT state = 'REAPED' AND cleared_at IS NOT NULL FROM fleet.lease WHERE id = %s", lease)
    assert await counters(watcher) == {("lease_expirations", "", ""): 1}
    assert await value(watcher, "SELECT count(*) FROM fleet.attempt") == 0
    task = await submit(watcher, name="quick")
    assert await terminal(watcher, task) == "SUCCEEDED"
    assert await value(watcher, "SELECT state FROM fleet.lease WHERE pid = %s", survivor.pid) == "LIVE"


@pytest.mark.fault("Death", "SIGKILL after the claim, before the handler")
async def test_killed_between_the_claims_commit_and_the_handlers_start(
    crew: Crew, stage: Stage, watcher: AsyncConnection, locker: AsyncConnection, sink: Sink
) -> None:
    victim = await crew.worker(slots=3, **PATIENT)
    lease = await crew.lease_of(victim)
    holds_the_loop = await submit(watcher, name="act")
    blocker = await stage.arrival(holds_the_loop)
    await until(watcher, "SELECT idle FROM fleet.lease WHERE id = %s", lease)  # no claim is under way that is too early
    await locker.execute("SELECT FROM fleet.lease WHERE id = %s FOR UPDATE", (lease,))
    repeatable, once = await submit_both(watcher)
    await waits_for_lock(watcher, "claim")
    await blocker.order("block 60")  # from here on the answer to the claim is read by nobody
    await locker.commit()
    claimed = "SELECT count(*) = 2 FROM fleet.task WHERE state = 'RUNNING' AND id = ANY (%s)"
    await until(watcher, claimed, [repeatable, once])
    rescuer = crew.start(slots=3)
    victim.kill()

    await fails_unknown(watcher, once)
    assert sink.attempts("start", once) == []
    await runs_again(watcher, stage, repeatable)
    assert sink.attempts("start", repeatable) == [2]
    await runs_again(watcher, stage, holds_the_loop)
    assert rescuer.popen.poll() is None


@pytest.mark.fault("Death", "SIGKILL inside the handler")
async def test_killed_inside_the_handler(crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink) -> None:
    victim = await crew.worker(slots=4)
    tasks = [await submit_both(watcher), await submit_both(watcher, "_in_thread")]
    for task in [task for both in tasks for task in both]:
        await (await stage.arrival(task)).order("effect")
    crew.start(slots=4)
    victim.kill()
    for repeatable, once in tasks:
        await fails_unknown(watcher, once)
        assert (sink.attempts("start", once), sink.attempts("effect", once)) == ([1], [1])
        await runs_again(watcher, stage, repeatable)
        assert sink.attempts("effect", repeatable) == [1, 2]
    assert await counters(watcher) == {
        ("lease_expirations", "", ""): 1,
        ("reclaims", "default", ""): 2,
        ("dead_letters", "default", "lease_expired"): 2,
    }


@pytest.mark.fault("Death", "SIGKILL after the effect, before the settlement")
async def test_killed_after_the_effect_and_before_the_settlement(
    crew: Crew, stage: Stage, watcher: AsyncConnection, locker: AsyncConnection, sink: Sink
) -> None:
    victim = await crew.worker(slots=2)
    both = await submit_both(watcher)
    actors = [await stage.arrival(task) for task in both]
    await locker.execute("SELECT FROM fleet.task FOR UPDATE")  # every settlement is answered `busy`
    for actor in actors:
        await actor.order("effect")
        actor.tell("return 1")
        await actor.gone()
    settling = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND query ~ %s"
    await until(watcher, settling, "result = held.result")
    crew.start(slots=2)
    victim.kill()
    await locker.commit()

    repeatable, once = both
    await fails_unknown(watcher, once)
    await runs_again(watcher, stage, repeatable)
    assert (sink.attempts("effect", once), sink.attempts("effect", repeatable)) == ([1], [1, 2])


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.fault("Death", "SIGKILL in the settling transaction")
@pytest.mark.fault("Death", "SIGKILL between the COMMIT and its reply")
async def test_killed_in_the_settling_transaction_what_was_committed_counts(
    crew: Crew, stage: Stage, watcher: AsyncConnection, locker: AsyncConnection, sink: Sink, *, committed: bool
) -> None:
    victim = await crew.worker(slots=2, **PATIENT)
    await warm(watcher)
    both = await submit_both(watcher)
    actors = [await stage.arrival(task) for task in both]
    await locker.execute("LOCK TABLE fleet.task IN SHARE MODE")
    for actor in actors:
        await actor.order("effect")
    actors[0].tell("return 1")
    settling = await waits_for_lock(watcher, "settle")
    crew.start(slots=2, **PATIENT)
    victim.kill()
    if not committed:
        await watcher.execute("SELECT pg_terminate_backend(%s, 5000)", (settling,))
    await locker.commit()

    repeatable, once = both
    await fails_unknown(watcher, once)
    if committed:
        assert await terminal(watcher, repeatable) == "SUCCEEDED"
        found = await row(watcher, repeatable)
        assert (found["attempt"], found["losses"], found["result"]) == (1, 0, 1)
        assert sink.attempts("start", repeatable) == [1]
    else:
        await runs_again(watcher, stage, repeatable)
    assert sink.attempts("effect", once) == [1]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.fault("Death", "SIGKILL while scheduling a retry")
async def test_killed_while_scheduling_a_retry_it_was_scheduled_or_the_worker_was_lost(
    crew: Crew, stage: Stage, watcher: AsyncConnection, locker: AsyncConnection, sink: Sink, *, committed: bool
) -> None:
    victim = await crew.worker(slots=2, **PATIENT)
    await warm(watcher)
    both = await submit_both(watcher)
    repeatable, once = both
    await stage.arrival(repeatable)
    actor = await stage.arrival(once)
    await locker.execute("LOCK TABLE fleet.attempt IN SHARE MODE")
    actor.tell("retry 0")
    settling = await waits_for_lock(watcher, "settle")
    victim.kill()
    if not committed:
        await watcher.execute("SELECT pg_terminate_backend(%s, 5000)", (settling,))
    crew.start(slots=2)
    await locker.commit()

    await runs_again(watcher, stage, repeatable)
    if committed:  # it may not be repeated, but its handler itself asked for it, and was heard
        (await stage.arrival(once, 2)).tell("return 2")
        assert await terminal(watcher, once) == "SUCCEEDED"
        found = await row(watcher, once)
        assert (found["attempt"], found["failures"], found["losses"]) == (2, 1, 0)
        assert await history(watcher, once) == [(1, False, "error")]
    else:
        await fails_unknown(watcher, once)
        assert sink.attempts("start", once) == [1]


@pytest.mark.fault("Death", "SIGKILL in a drain")
async def test_killed_in_a_drain(crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink) -> None:
    victim = await crew.worker(slots=2, drain_timeout="60s")
    lease = await crew.lease_of(victim)
    repeatable, once = await submit_both(watcher)
    for task in (repeatable, once):
        await (await stage.arrival(task)).order("effect")
    victim.send(signal.SIGTERM)
    await until(watcher, "SELECT state = 'DRAINING' FROM fleet.lease WHERE id = %s", lease)
    crew.start(slots=2)
    victim.kill()
    await fails_unknown(watcher, once)
    await runs_again(watcher, stage, repeatable)
    assert sink.attempts("effect", once) == [1]
    assert await value(watcher, "SELECT state FROM fleet.lease WHERE id = %s", lease) == "REAPED"


@pytest.mark.fault("Death", "os._exit, abort or segfault in a handler")
async def test_a_handler_that_takes_its_process_with_it_by_exit_abort_or_segfault(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    ends = {"exit 3": 3, "abort": -signal.SIGABRT, "segfault": -signal.SIGSEGV}
    victims = [await crew.worker(slots=2, queues=[queue]) for queue in ends]
    tasks = [await submit_both(watcher, queue=queue) for queue in ends]
    for both in tasks:
        for task in both:
            await (await stage.arrival(task)).order("effect")
    crew.start(slots=6, queues=list(ends))
    for victim, (deed, code), both in zip(victims, ends.items(), tasks, strict=True):
        await (await stage.arrival(both[0])).order(deed)
        assert await victim.ended() == code
    for repeatable, once in tasks:
        await fails_unknown(watcher, once)
        await runs_again(watcher, stage, repeatable)
        assert (sink.attempts("start", once), sink.attempts("effect", once)) == ([1], [1])
