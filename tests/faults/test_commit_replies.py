"""A statement commits and nobody hears of it, or it never gets to the server: each seam converges to one correct state."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet import Fleet, Settings, Task
from fleet.errors import OutcomeUnknown
from fleet.postgres.database import AsyncConnection
from fleet.testing.link import When
from fleet.testing.proxy import Cut, Proxy
from tests.faults.steps import STATE, play, submit_both
from tests.processes.crew import Crew, Process, Sink, terminal, until, value, waits_for_lock
from tests.processes.oracle import Story, judge_all
from tests.processes.stage import Stage
from tests.support import TTL, counters, history, row

TTL_SECONDS = TTL.total_seconds()
REAP_SECONDS = TTL_SECONDS + 2.4 * TTL_SECONDS / 6  # L2
UNHEARD_SECONDS = 2 * TTL_SECONDS / 6  # L3
SLACK_SECONDS = 4.0  # of a machine that does other things beside
SUBMIT = r"INSERT INTO fleet\.task"
CLAIM = r"SET state = 'RUNNING'"
SUCCEED = r"SET state = 'SUCCEEDED'"
GIVE_BACK = r"AS given \(id, attempt, outcome, delay, code, reason\)"
RENEW = r"SET renewed_at = clock_timestamp\(\)"
REGISTER = r"INSERT INTO fleet\.lease"
MARK = r"SET state = 'REAPED'"
RECLAIM = r"'lost', reason"
DRAIN = r"SET state = 'DRAINING'"
CLOSE = r"SET state = 'RELEASED'"
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING')"
TASKS = "SELECT count(*) FROM fleet.task"
KINDS = "SELECT count(*) FROM fleet.lease WHERE state = %s"


FAULTS: dict[When, str] = {"before": "a statement never sent", "after": "a commit's reply lost"}


def at(seam: str) -> pytest.MarkDecorator:
    """Run a test with each of the two faults of a seam, under its own mark."""
    marks = {when: pytest.mark.fault("Network", f"{fault}: {seam}") for when, fault in FAULTS.items()}
    return pytest.mark.parametrize("when", [pytest.param(when, marks=mark) for when, mark in marks.items()])


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
async def app(proxy: Proxy) -> AsyncIterator[Fleet]:
    """A client behind the proxy."""
    async with Fleet(proxy.url, settings=Settings(ttl=TTL)) as app:
        yield app


async def happened(cut: Cut, when: When, tag: str, count: int = 1) -> None:
    """The fault took place: the server had finished the statement, or it has never seen it."""
    await cut.cut(count=count)
    assert cut.tags == [[tag] if when == "after" else []] * count


async def judged(watcher: AsyncConnection, sink: Sink) -> list[Story]:
    """Nothing is left queued or running, and everything that is on record fits together."""
    await until(watcher, OPEN, is_=lambda count: count == 0, seconds=60)
    return await judge_all(watcher, sink)


async def run_both(crew: Crew, stage: Stage, watcher: AsyncConnection, url: str) -> tuple[Process, tuple[UUID, UUID]]:
    """A worker with a task that may be repeated and one that may not, both at work."""
    worker = await crew.worker(database_url=url, slots=2)
    tasks = await submit_both(watcher)
    for task in tasks:
        await stage.arrival(task)
    return worker, tasks


async def once_each(watcher: AsyncConnection, sink: Sink, tasks: tuple[UUID, UUID]) -> None:
    """Both succeeded in their first and only attempt, and nobody was refused or charged."""
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
    await judged(watcher, sink)
    for task in tasks:
        assert sink.attempts("start", task) == sink.attempts("effect", task) == [1]
        assert await history(watcher, task) == []
    assert await counters(watcher) == {}


def declare(app: Fleet) -> "Task[[], None]":
    @app.task(idempotent=True)
    async def quick() -> None: ...

    return quick


@at("submit")
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_submission_whose_outcome_is_unknown_is_one_task_after_the_next_try_with_its_key(
    app: Fleet, proxy: Proxy, watcher: AsyncConnection, crew: Crew, sink: Sink, when: When, *, plain: bool
) -> None:
    task = declare(app).options(idempotency_key="order 17")
    await task.options(idempotency_key="another").submit()
    cut = proxy.cut(SUBMIT, when=when)
    with pytest.raises(OutcomeUnknown, match="submit again with the same idempotency key"):
        await (asyncio.to_thread(task.submit_sync) if plain else task.submit())
    await happened(cut, when, "SELECT 1")
    assert await value(watcher, TASKS) == (2 if when == "after" else 1)
    refs = [task.submit_sync() if plain else await task.submit() for _ in range(2)]
    assert refs[0].id == refs[1].id
    assert await value(watcher, TASKS) == 2
    crew.start()
    await judged(watcher, sink)
    assert sink.attempts("start", refs[0].id) == [1]


@at("submit, without a key")
async def test_a_submission_without_a_key_is_never_called_failed_when_its_outcome_is_unknown(
    app: Fleet, proxy: Proxy, watcher: AsyncConnection, when: When
) -> None:
    cut = proxy.cut(SUBMIT, when=when)
    with pytest.raises(OutcomeUnknown):
        await declare(app).submit()
    await happened(cut, when, "INSERT 0 1")
    assert await value(watcher, TASKS) == (1 if when == "after" else 0)


CANCELLED = pytest.mark.fault("Network", "a client's task cancelled during its submit")


@CANCELLED
async def test_a_submit_that_is_cancelled_while_the_server_is_at_it_is_undone_and_its_key_is_free(
    app: Fleet, watcher: AsyncConnection, locker: AsyncConnection
) -> None:
    task = declare(app).options(idempotency_key="order 17")
    await locker.execute(
        "INSERT INTO fleet.submission (scope, key, task_id, fingerprint) VALUES ('', 'order 17', %s, '')", (uuid7(),)
    )
    submitting: asyncio.Task[object] = asyncio.ensure_future(task.submit())
    await waits_for_lock(watcher, "client")
    submitting.cancel()
    assert isinstance((await asyncio.gather(submitting, return_exceptions=True))[0], asyncio.CancelledError)
    await locker.rollback()
    assert await value(watcher, TASKS) == 0
    refs = [await task.submit() for _ in range(2)]
    assert refs[0].id == refs[1].id
    assert await value(watcher, TASKS) == 1


@CANCELLED
async def test_a_submit_that_is_cancelled_after_its_commit_is_found_again_by_its_key(
    app: Fleet, proxy: Proxy, watcher: AsyncConnection
) -> None:
    task = declare(app).options(idempotency_key="order 17")
    await task.options(idempotency_key="another").submit()
    proxy.freeze("to_client")
    submitting: asyncio.Task[object] = asyncio.ensure_future(task.submit())
    await until(watcher, TASKS, is_=lambda count: count == 2)
    submitting.cancel()
    await asyncio.sleep(0)
    proxy.heal()
    assert isinstance((await asyncio.gather(submitting, return_exceptions=True))[0], asyncio.CancelledError)
    stored = await value(watcher, "SELECT task_id FROM fleet.submission WHERE key = 'order 17'")
    assert (await task.submit()).id == stored
    assert await value(watcher, TASKS) == 2


@CANCELLED
async def test_submits_cancelled_at_any_moment_are_one_task_each_after_the_next_try_and_leave_the_client_whole(
    app: Fleet, proxy: Proxy, watcher: AsyncConnection
) -> None:
    task, chance = declare(app), random.Random(3)
    await task.submit()
    proxy.delay(0.0, 0.02)
    gave_up = 0
    for number in range(60):
        try:
            async with asyncio.timeout(chance.uniform(0, 0.06)):
                await task.options(idempotency_key=str(number)).submit()
        except TimeoutError:
            gave_up += 1
    before = await value(watcher, "SELECT count(*) FROM fleet.submission")
    assert gave_up > 10
    assert 60 - gave_up <= before <= 60
    for number in range(60):
        await task.options(idempotency_key=str(number)).submit()
    assert await value(watcher, TASKS) == 1 + 60
    assert await value(watcher, "SELECT count(DISTINCT task_id) FROM fleet.submission") == 60


@at("claim")
async def test_what_was_claimed_unheard_is_handed_back_at_no_cost_within_two_renewals_and_starts_once(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, when: When
) -> None:
    tasks = await submit_both(watcher)
    stage.then = play
    cut = proxy.cut(CLAIM, when=when)
    await crew.worker(database_url=proxy.url, slots=2)
    await happened(cut, when, "SELECT 3")  # one row for the lease, and both tasks
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
    await judged(watcher, sink)
    for task in tasks:
        assert sink.attempts("start", task) == ([2] if when == "after" else [1])
        assert await history(watcher, task) == ([(1, False, "released")] if when == "after" else [])
        found = await row(watcher, task)
        assert (found["losses"], found["failures"]) == (0, 0)
    if when == "after":
        released = await value(watcher, "SELECT extract(epoch FROM max(at))::float8 FROM fleet.attempt")
        claimed = min(crossing.at for crossing in proxy.crossings if "SET state = 'RUNNING'" in crossing.statement)
        assert released - claimed < UNHEARD_SECONDS + SLACK_SECONDS
    assert await counters(watcher) == {}


@at("settle")
async def test_a_success_that_was_settled_unheard_is_told_again_and_counts_once(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, when: When
) -> None:
    worker, tasks = await run_both(crew, stage, watcher, proxy.url)
    cut = proxy.cut(SUCCEED, when=when)
    for task in tasks:
        play(await stage.arrival(task))
    await happened(cut, when, "SELECT 0")  # it answers only what it could not settle
    await once_each(watcher, sink, tasks)
    worker.send(signal.SIGTERM)  # it drains only when every report has been answered
    assert await worker.ended() == 0
    assert await value(watcher, KINDS, "RELEASED") == 1
    assert await counters(watcher) == {}


@at("retry")
async def test_a_failure_that_was_written_unheard_is_charged_once(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, when: When
) -> None:
    _, (repeatable, once) = await run_both(crew, stage, watcher, proxy.url)
    cut = proxy.cut(GIVE_BACK, when=when)
    (await stage.arrival(repeatable)).tell("raise no more ink")
    await happened(cut, when, "SELECT 1")
    play(await stage.arrival(repeatable, 2))
    cut = proxy.cut(GIVE_BACK, when=when)
    (await stage.arrival(once)).tell("raise no more paper")
    await happened(cut, when, "SELECT 1")
    assert await terminal(watcher, repeatable) == "SUCCEEDED"
    assert await terminal(watcher, once) == "FAILED"
    await judged(watcher, sink)
    for task in (repeatable, once):
        assert (await row(watcher, task))["failures"] == 1
        assert await history(watcher, task) == [(1, False, "error")]
    assert await counters(watcher) == {("dead_letters", "default", "handler_error"): 1}


@at("renew")
async def test_a_renewal_that_nobody_heard_of_costs_nobody_a_lease(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, when: When
) -> None:
    worker, tasks = await run_both(crew, stage, watcher, proxy.url)
    await crew.worker(slots=1)  # who could accuse it
    lease = await crew.lease_of(worker)
    cut = proxy.cut(RENEW, when=when, count=2)
    await happened(cut, when, "SELECT 1", count=2)
    moment = await value(watcher, "SELECT clock_timestamp()")
    await until(watcher, "SELECT renewed_at > %s FROM fleet.lease WHERE id = %s", moment, lease)
    for task in tasks:
        play(await stage.arrival(task))
    await once_each(watcher, sink, tasks)
    assert await value(watcher, STATE, lease) == "LIVE"


@at("register")
async def test_a_lease_that_was_registered_unheard_is_reaped_and_another_one_works(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, when: When
) -> None:
    worker = await crew.worker(database_url=proxy.url, slots=2)
    first = await crew.lease_of(worker)
    await crew.worker(queues=["elsewhere"])
    cut = proxy.cut(REGISTER, when=when)
    worker.stop()
    await until(watcher, STATE, first, is_=lambda state: state == "REAPED")
    worker.send(signal.SIGCONT)
    await happened(cut, when, "SELECT 1")
    stage.then = play
    tasks = await submit_both(watcher)
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
    reaped = 2 if when == "after" else 1
    await until(watcher, KINDS, "REAPED", is_=lambda count: count == reaped)
    assert await value(watcher, KINDS, "LIVE") == 2
    await judged(watcher, sink)
    for task in tasks:
        assert sink.attempts("start", task) == [1]


async def lose_its_worker(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, url: str, statement: str, when: When
) -> tuple[UUID, UUID]:
    """Kill a worker that runs both tasks; the only other one, behind the proxy, loses a statement over it."""
    victim, tasks = await run_both(crew, stage, watcher, url)
    await crew.worker(database_url=proxy.url, slots=2)
    cut = proxy.cut(statement, when=when)
    victim.kill()
    await happened(cut, when, "SELECT 1")
    return tasks


@pytest.mark.parametrize(
    ("statement", "when"),
    [
        pytest.param(statement, when, marks=pytest.mark.fault("Network", f"{fault}: {seam}"), id=f"{seam}-{when}")
        for seam, statement in (("mark", MARK), ("sweep", RECLAIM))
        for when, fault in FAULTS.items()
    ],
)
async def test_a_reaper_that_does_not_hear_what_it_did_leaves_nothing_undone_and_counts_nothing_twice(
    crew: Crew,
    stage: Stage,
    proxy: Proxy,
    watcher: AsyncConnection,
    sink: Sink,
    database_url: str,
    statement: str,
    when: When,
) -> None:
    repeatable, once = await lose_its_worker(crew, stage, proxy, watcher, database_url, statement, when)
    play(await stage.arrival(repeatable, 2))
    assert await terminal(watcher, repeatable) == "SUCCEEDED"
    assert await terminal(watcher, once) == "FAILED"
    await judged(watcher, sink)
    assert sink.attempts("start", once) == [1]
    lost = "SELECT extract(epoch FROM max(attempt.at) - max(lease.renewed_at))::float8 FROM fleet.attempt, fleet.lease"
    took = await value(watcher, f"{lost} WHERE attempt.outcome = 'lost' AND lease.state = 'REAPED'")
    assert took < REAP_SECONDS + SLACK_SECONDS
    assert await counters(watcher) == {
        ("lease_expirations", "", ""): 1,
        ("reclaims", "default", ""): 1,
        ("dead_letters", "default", "lease_expired"): 1,
    }
    await until(watcher, "SELECT count(*) FROM fleet.lease WHERE state = 'REAPED' AND cleared_at IS NOT NULL")


@at("drain")
async def test_a_drain_that_nobody_heard_of_ends_in_time_with_its_lease_given_up(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, when: When
) -> None:
    worker, tasks = await run_both(crew, stage, watcher, proxy.url)
    lease = await crew.lease_of(worker)
    cut = proxy.cut(DRAIN, when=when)
    worker.send(signal.SIGTERM)
    await happened(cut, when, "UPDATE 1")
    for task in tasks:
        play(await stage.arrival(task))
    assert await worker.ended() == 0
    await once_each(watcher, sink, tasks)
    assert await value(watcher, STATE, lease) == "RELEASED"


@at("drain, at its end")
async def test_a_lease_that_is_given_up_unheard_is_given_up(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, when: When
) -> None:
    worker, tasks = await run_both(crew, stage, watcher, proxy.url)
    lease = await crew.lease_of(worker)
    cut = proxy.cut(CLOSE, when=when)
    worker.send(signal.SIGTERM)
    for task in tasks:
        play(await stage.arrival(task))
    await happened(cut, when, "UPDATE 1")
    assert await worker.ended() == 0
    await once_each(watcher, sink, tasks)
    assert await value(watcher, STATE, lease) == "RELEASED"


@at("drain, right after a claim whose reply was lost")
async def test_what_was_claimed_unheard_before_a_drain_is_handed_back_although_the_drain_is_unheard_too(
    crew: Crew, stage: Stage, proxy: Proxy, watcher: AsyncConnection, sink: Sink, when: When
) -> None:
    """Else a task that must not be repeated would end FAILED without ever having been started."""
    tasks = await submit_both(watcher)
    claim, drain = proxy.cut(CLAIM, when="after"), proxy.cut(DRAIN, when=when)
    stage.then = play
    worker = crew.start(database_url=proxy.url, slots=2, backoff_base="1s", ttl="3s")
    await happened(claim, "after", "SELECT 3")
    worker.send(signal.SIGTERM)
    await happened(drain, when, "UPDATE 1")
    assert await worker.ended() == 0
    await crew.worker(slots=2)
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
    await judged(watcher, sink)
    for task in tasks:
        assert sink.attempts("start", task) == [2]
        assert await history(watcher, task) == [(1, False, "released")]
