"""The database did it, and its answer never came: what was claimed so is found again, what was settled so is left alone."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fleet import Context, Fleet, Retry, Settings
from fleet.events import DatabaseTrouble, LeaseRenewed, TaskFenced, TaskSettled, TasksReconciled
from fleet.lease import Lease
from fleet.postgres import claim, settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Settlement, State
from tests.support import history, row
from tests.worker.steps import Gate, Recorder, in_state, lease_of, lease_state, until

Write = Callable[[AsyncConnection, Lease, Sequence[Settlement]], Awaitable[settle.Answers]]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, backoff_base=timedelta(milliseconds=1))


def lose_claims(monkeypatch: pytest.MonkeyPatch, *, after: int = 0, count: int = 1) -> list[claim.Claimed]:
    """Let the answers of some claims that bring something be lost; returns where they are kept instead.

    Call it before the worker starts: a claim that is under way already would be answered.
    """
    heard: list[claim.Claimed] = []
    lost: list[claim.Claimed] = []
    original = claim.claim

    async def claim_unheard(
        connection: AsyncConnection, lease: Lease, lanes: Sequence[claim.Lane], handlers: Mapping[str, bool], free: int
    ) -> claim.Claimed | None:
        claimed = await original(connection, lease, lanes, handlers, free)
        if claimed is not None and claimed.tasks and len(heard) < after:
            heard.append(claimed)
        elif claimed is not None and claimed.tasks and len(lost) < count:
            lost.append(claimed)
            raise psycopg.OperationalError("the answer was lost")
        return claimed

    monkeypatch.setattr(claim, "claim", claim_unheard)
    return lost


def lose_settlements(monkeypatch: pytest.MonkeyPatch, verb: str) -> list[Sequence[Settlement]]:
    """Let the first answer of `settle.succeed` or `settle.give_back` be lost."""
    lost: list[Sequence[Settlement]] = []
    original: Write = getattr(settle, verb)

    async def write_unheard(
        connection: AsyncConnection, lease: Lease, settlements: Sequence[Settlement]
    ) -> settle.Answers:
        answers = await original(connection, lease, settlements)
        if not lost:
            lost.append(settlements)
            raise psycopg.OperationalError("the answer was lost")
        return answers

    monkeypatch.setattr(settle, verb, write_unheard)
    return lost


@pytest.mark.fault("Network", "a commit's reply lost: claim")
@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_was_claimed_without_an_answer_is_handed_back_at_no_cost_and_runs_once(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch, *, idempotent: bool
) -> None:
    ran = []

    @app.task(idempotent=idempotent)
    async def work(number: int) -> None:
        ran.append(number)

    lost = lose_claims(monkeypatch)
    refs = await app.submit_many(work, [{"number": number} for number in range(5)])
    async with app.worker(events=recorder.events):
        for ref in refs:
            await ref.result(10)
        renewals = len(recorder.of(LeaseRenewed))
    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert sum(event.count for event in recorder.of(TasksReconciled)) == len(lost[0].tasks) == 5
    assert renewals <= 2 + 1, "within two renewals"
    stored = await row(connection, refs[0].id)
    assert (stored["attempt"], stored["failures"], stored["losses"]) == (2, 0, 0)
    assert await history(connection, refs[0].id) == [(1, False, "released")]


@pytest.mark.fault("Network", "a commit's reply lost: claim")
async def test_a_claim_that_a_proxy_delivers_late_is_found_too(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks, nothing is found; then the statement arrives all the same."""
    pending: list[tuple[Any, ...]] = []
    original, reconcile = claim.claim, claim.reconcile

    async def claim_delayed(*arguments: Any) -> claim.Claimed | None:
        if not pending and await ready(connection):
            pending.append(arguments[1:])
            raise psycopg.OperationalError("the connection is lost")
        return await original(*arguments)

    async def reconcile_too_soon(*arguments: Any) -> list[Any]:
        found = await reconcile(*arguments)
        if len(pending) == 1:
            pending.append(())
            assert await original(connection, *pending[0]) is not None
        return found

    monkeypatch.setattr(claim, "claim", claim_delayed)
    monkeypatch.setattr(claim, "reconcile", reconcile_too_soon)
    ran = []

    @app.task
    async def work() -> None:
        ran.append(1)

    ref = await work.submit()
    async with app.worker(events=recorder.events):
        await ref.result(10)
    assert ran == [1]
    assert await history(connection, ref.id) == [(1, False, "released")]


async def ready(connection: AsyncConnection) -> bool:
    cursor = await connection.execute("SELECT FROM fleet.task WHERE state = 'QUEUED'")
    return bool(await cursor.fetchall())


async def test_a_worker_that_runs_something_does_not_hand_it_back_while_it_reconciles(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    @app.task
    async def work(number: int) -> int:
        await gate.enter(number)
        return number

    lost = lose_claims(monkeypatch, after=1)
    async with app.worker(events=recorder.events):
        running = await work.submit(1)
        await gate.waiting()
        other = await work.submit(2)
        await recorder.seen(TasksReconciled)
        await gate.waiting(2)
        gate.open()
        assert (await running.result(10), await other.result(10)) == (1, 2)
    assert Counter(gate.entered) == {1: 1, 2: 1}
    assert [task.id for task in lost[0].tasks] == [other.id]
    assert await history(connection, running.id) == []


async def test_a_drain_right_after_a_lost_claim_hands_back_what_it_took(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    @app.task
    async def work() -> None:
        ran.append(1)

    lost = lose_claims(monkeypatch)
    async with app.worker(events=recorder.events) as worker:
        lease = lease_of(worker)
        recorder.events.subscribe(lambda event: worker.drain("test") if isinstance(event, DatabaseTrouble) else None)
        ref = await work.submit()
        await worker.wait()
        assert lost
    assert ran == []
    assert await ref.state() is State.QUEUED
    assert await history(connection, ref.id) == [(1, False, "released")]
    assert await lease_state(connection, lease) == "RELEASED"


@pytest.mark.fault("Network", "a commit's reply lost: settle")
async def test_a_success_whose_answer_was_lost_is_written_once(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    @app.task
    async def work() -> str:
        ran.append(1)
        return "done"

    lost = lose_settlements(monkeypatch, "succeed")
    async with app.worker(events=recorder.events):
        ref = await work.submit()
        assert await ref.result(10) == "done"
        await recorder.seen(TaskSettled)
    assert (ran, len(lost)) == ([1], 1)
    assert [event.state for event in recorder.of(TaskSettled)] == [State.SUCCEEDED]
    assert recorder.of(TaskFenced) == []
    assert await history(connection, ref.id) == []


@pytest.mark.fault("Network", "a commit's reply lost: settle")
async def test_a_failure_whose_answer_was_lost_is_charged_once(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(idempotent=True, max_attempts=3)
    async def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError
        return ctx.attempt

    lost = lose_settlements(monkeypatch, "give_back")
    async with app.worker(events=recorder.events):
        ref = await work.submit()
        assert await ref.result(10) == 2
        await until(lambda: len(recorder.of(TaskSettled)) == 2)
    assert len(lost) == 1
    assert recorder.of(TaskFenced) == []
    assert (await row(connection, ref.id))["failures"] == 1
    assert await history(connection, ref.id) == [(1, False, "error")]


@pytest.mark.fault("Network", "a commit's reply lost: retry")
async def test_a_retry_whose_answer_was_lost_may_run_again_before_the_report_is_repeated(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt is RUNNING, in this same worker, when the first one's end is sent again."""
    app.settings = replace(app.settings, backoff_base=timedelta(milliseconds=300))
    gate = Gate()

    @app.task(max_attempts=2)
    async def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Retry(after=0)
        await gate.enter(ctx.attempt)
        return ctx.attempt

    lost = lose_settlements(monkeypatch, "give_back")
    async with app.worker(events=recorder.events):
        ref = await work.submit()
        await gate.waiting()
        await recorder.seen(TaskSettled)
        gate.open()
        assert await ref.result(10) == 2
    assert len(lost) == 1
    assert recorder.of(TaskFenced) == []
    assert gate.entered == [2]
    assert await history(connection, ref.id) == [(1, False, "error")]


async def test_a_row_that_somebody_holds_does_not_keep_the_others_from_being_settled(
    app: Fleet, recorder: Recorder, holder: AsyncConnection
) -> None:
    gate = Gate()

    @app.task
    async def work(number: int) -> int:
        await gate.enter(number)
        return number

    async with app.worker(events=recorder.events):
        refs = await app.submit_many(work, [{"number": number} for number in range(4)])
        await gate.waiting(4)
        async with holder.transaction():
            await holder.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (refs[0].id,))
            gate.open()
            assert [await ref.result(10) for ref in refs[1:]] == [1, 2, 3]
            assert await refs[0].state() is State.RUNNING
        assert await refs[0].result(10) == 0
    assert recorder.of(DatabaseTrouble) == []


async def test_a_row_that_somebody_holds_does_not_keep_the_others_from_being_claimed(
    app: Fleet, holder: AsyncConnection
) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    refs = await app.submit_many(work, [{"number": number} for number in range(4)])
    async with holder.transaction():
        await holder.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (refs[0].id,))
        async with app.worker():
            assert [await ref.result(10) for ref in refs[1:]] == [1, 2, 3]
            assert await refs[0].state() is State.QUEUED
    async with app.worker():
        await in_state(refs[0], State.SUCCEEDED)
