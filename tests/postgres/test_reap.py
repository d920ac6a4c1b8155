"""What becomes of leases that ran out and of the tasks that they held."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import cancel, heartbeat, reap
from fleet.postgres.database import AsyncConnection, run
from fleet.task import ClaimedTask, Succeeded, Verdict
from tests.postgres.steps import (
    BACKOFF_BASE,
    BACKOFF_CAP,
    MINUTE,
    end_lease,
    make_due,
    reap_lease,
    scalar,
    settle_one,
    sweeper,
    take,
    whole,
)
from tests.support import claim_some, counters, expire_lease, history, new_lease, renew, row, submit


async def lease_state(connection: AsyncConnection, lease: Lease) -> str:
    return str(await scalar(connection, "SELECT state FROM fleet.lease WHERE id = %s", lease.id))


async def cleared(connection: AsyncConnection, lease: Lease) -> bool:
    return bool(await scalar(connection, "SELECT cleared_at IS NOT NULL FROM fleet.lease WHERE id = %s", lease.id))


async def test_only_an_expired_lease_is_marked_whoever_is_accused(connection: AsyncConnection, lease: Lease) -> None:
    assert await reap.mark(connection, uuid7(), [lease.id]) == []
    assert await lease_state(connection, lease) == "LIVE"

    await expire_lease(connection, lease)
    assert await reap.mark(connection, uuid7(), [lease.id]) == [lease.id]
    assert await lease_state(connection, lease) == "REAPED"


async def test_only_the_accused_are_marked(connection: AsyncConnection, lease: Lease, rival: Lease) -> None:
    await expire_lease(connection, lease)
    await expire_lease(connection, rival)

    assert await reap.mark(connection, uuid7(), [rival.id]) == [rival.id]
    assert await reap.mark(connection, uuid7(), []) == []
    assert await lease_state(connection, lease) == "LIVE"


async def test_a_lease_that_was_renewed_after_it_expired_is_not_marked(
    connection: AsyncConnection, lease: Lease
) -> None:
    await expire_lease(connection, lease)
    await renew(connection, lease)
    assert await reap.mark(connection, uuid7(), [lease.id]) == []


async def test_a_lease_of_the_time_before_the_clock_was_set_back_is_expired_unless_its_holder_renews(
    connection: AsyncConnection, lease: Lease, rival: Lease
) -> None:
    set_back = (
        "UPDATE fleet.lease SET renewed_at = renewed_at + interval '1 h', expires_at = expires_at + interval '1 h'"
    )
    await connection.execute(set_back)
    await renew(connection, rival)
    seen = {each.id: each.expired for each in (await reap.survey(connection)).leases}
    assert (seen[lease.id], seen[rival.id]) == (True, False)
    assert await reap.mark(connection, uuid7(), [lease.id, rival.id]) == [lease.id]


async def test_a_draining_lease_is_marked_and_one_that_is_over_is_not(
    connection: AsyncConnection, lease: Lease, rival: Lease
) -> None:
    await heartbeat.drain(connection, lease.id)
    await heartbeat.drain(connection, rival.id)
    await heartbeat.close(connection, rival)
    for one in (lease, rival):
        await expire_lease(connection, one)

    assert await reap.mark(connection, uuid7(), [lease.id, rival.id]) == [lease.id]
    assert await reap.mark(connection, uuid7(), [lease.id, rival.id]) == []
    assert await lease_state(connection, rival) == "RELEASED"


async def test_marks_are_counted_once_in_the_account_of_who_marked(connection: AsyncConnection, lease: Lease) -> None:
    me = uuid7()
    for _ in range(3):
        victims = [(await new_lease(connection)) for _ in range(2)]
        for victim in victims:
            await expire_lease(connection, victim)
        ids = [victim.id for victim in victims]
        assert sorted(await reap.mark(connection, me, [*ids, lease.id])) == sorted(ids)
        await reap.mark(connection, me, ids)

    assert await counters(connection) == {("lease_expirations", "", ""): 6}
    assert await scalar(connection, "SELECT writer FROM fleet.counter") == me


async def test_a_marked_lease_sleeps_no_more(connection: AsyncConnection, lease: Lease) -> None:
    await connection.execute("UPDATE fleet.lease SET idle = true WHERE id = %s", (lease.id,))
    await end_lease(connection, lease)
    assert await scalar(connection, "SELECT idle FROM fleet.lease WHERE id = %s", lease.id) is False


async def test_who_knows_that_the_holder_is_dead_ends_its_lease_before_it_expires(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease)

    assert await reap.end(connection, uuid7(), [lease.id]) == [lease.id]
    assert await reap.end(connection, uuid7(), [lease.id]) == []

    assert await renew(connection, lease) == []
    assert await reap.sweep(connection, sweeper(), [lease.id]) == reap.Reclaimed(requeued=1)
    assert (await row(connection, task.id))["state"] == "QUEUED"
    assert (await counters(connection))["lease_expirations", "", ""] == 1


async def test_a_sweep_of_leases_that_are_good_changes_nothing(
    connection: AsyncConnection, lease: Lease, rival: Lease
) -> None:
    held, draining = await take(connection, lease), await take(connection, rival)
    await heartbeat.drain(connection, rival.id)
    await expire_lease(connection, lease)  # expired, but nobody has marked it
    before = [await whole(connection, task.id) for task in (held, draining)]

    assert await reap.sweep(connection, sweeper(), [lease.id, rival.id]) == reap.Reclaimed()

    assert [await whole(connection, task.id) for task in (held, draining)] == before
    assert not await cleared(connection, lease)


async def test_a_repeatable_task_goes_back_and_waits_its_back_off(connection: AsyncConnection, lease: Lease) -> None:
    task = await take(connection, lease)
    begin = await scalar(connection, "SELECT clock_timestamp()")

    assert await reap_lease(connection, lease) == reap.Reclaimed(requeued=1)

    after = await row(connection, task.id)
    assert (after["state"], after["lease_id"], after["attempt"]) == ("QUEUED", None, 1)
    assert (after["losses"], after["failures"], after["failure_code"]) == (1, 0, None)
    assert begin + BACKOFF_BASE * 0.8 <= after["run_at"] <= begin + BACKOFF_BASE * 1.2 + MINUTE
    assert await history(connection, task.id) == [(1, False, "lost")]
    assert await cleared(connection, lease)


@pytest.mark.parametrize(("losses", "doublings"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 10), (500, 10)])
async def test_the_back_off_doubles_with_each_loss_up_to_its_cap(
    connection: AsyncConnection, lease: Lease, losses: int, doublings: int
) -> None:
    assert BACKOFF_CAP == 10 * BACKOFF_BASE
    task = await take(connection, lease, max_losses=1000, max_attempts=1000)
    await connection.execute("UPDATE fleet.task SET losses = %s", (losses,))
    begin = await scalar(connection, "SELECT clock_timestamp()")

    await reap_lease(connection, lease)

    delay = (await row(connection, task.id))["run_at"] - begin
    assert BACKOFF_BASE * doublings * 0.8 <= delay <= BACKOFF_BASE * doublings * 1.2 + MINUTE / 2


async def test_the_back_offs_of_one_sweep_are_spread(connection: AsyncConnection, lease: Lease) -> None:
    for _ in range(20):
        await take(connection, lease)
    await reap_lease(connection, lease)
    spread: timedelta = await scalar(connection, "SELECT max(run_at) - min(run_at) FROM fleet.task")
    assert spread > BACKOFF_BASE * 0.1


@pytest.mark.parametrize("asked", [False, True], ids=["", "and a cancel was asked"])
async def test_a_task_that_must_not_be_repeated_fails_and_says_who_is_to_blame(
    connection: AsyncConnection, lease: Lease, asked: bool
) -> None:
    task = await take(connection, lease, idempotent=False)
    if asked:
        await cancel.cancel(connection, [task.id], "operator")

    assert await reap_lease(connection, lease) == reap.Reclaimed(failed=1)

    after = await row(connection, task.id)
    renewed_at = await scalar(connection, "SELECT renewed_at::text FROM fleet.lease WHERE id = %s", lease.id)
    assert (after["state"], after["failure_code"], after["lease_id"]) == ("FAILED", "lease_expired", None)
    assert after["failure_reason"] == (
        f"worker exited before completion: lease {lease.id} of holder on host host, pid 1, last renewed at {renewed_at}"
    )
    assert after["finished_at"] is not None
    assert (await counters(connection))["dead_letters", "default", "lease_expired"] == 1


async def test_a_task_whose_submitter_objects_is_not_repeated_either(connection: AsyncConnection, lease: Lease) -> None:
    task = await take(connection, lease, idempotent=True)
    await make_due(connection, task.id)
    objected = await submit(connection, idempotent=False)
    await claim_some(connection, lease, idempotent=True)

    assert await reap_lease(connection, lease) == reap.Reclaimed(requeued=1, failed=1)
    assert (await row(connection, objected))["failure_code"] == "lease_expired"


async def test_a_repeatable_task_that_was_to_be_cancelled_is_cancelled(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease)
    await cancel.cancel(connection, [task.id], "operator")

    assert await reap_lease(connection, lease) == reap.Reclaimed(cancelled=1)

    after = await row(connection, task.id)
    assert (after["state"], after["losses"], after["failure_code"]) == ("CANCELLED", 1, None)
    assert after["finished_at"] is not None


@pytest.mark.parametrize(("failures", "losses", "failed"), [
    (0, 0, False), (0, 1, False), (0, 2, True), (3, 0, False), (2, 1, False), (4, 0, True), (3, 1, True), (9, 9, True),
])  # fmt: skip
async def test_the_budgets_of_losses_and_of_attempts_end_a_poison_pill(
    connection: AsyncConnection, lease: Lease, failures: int, losses: int, failed: bool
) -> None:
    task = await take(connection, lease, max_losses=3, max_attempts=5)
    await connection.execute("UPDATE fleet.task SET failures = %s, losses = %s", (failures, losses))

    assert await reap_lease(connection, lease) == (reap.Reclaimed(failed=1) if failed else reap.Reclaimed(requeued=1))

    after = await row(connection, task.id)
    assert after["failure_code"] == ("crash_budget_exhausted" if failed else None)
    assert after["losses"] == losses + 1


async def test_a_task_that_kills_every_worker_is_started_exactly_as_often_as_its_budget_says(
    connection: AsyncConnection,
) -> None:
    task_id = await submit(connection, max_losses=3, max_attempts=100)
    starts = 0
    while tasks := await claim_some(connection, lease := await new_lease(connection, ttl=MINUTE)):
        starts += 1
        assert tasks[0].attempt == starts
        await reap_lease(connection, lease)
        await make_due(connection, task_id)

    assert starts == 3
    assert (await row(connection, task_id))["failure_code"] == "crash_budget_exhausted"
    assert await history(connection, task_id) == [(1, False, "lost"), (2, False, "lost"), (3, False, "lost")]


async def test_a_second_sweep_changes_nothing(connection: AsyncConnection, lease: Lease) -> None:
    tasks = [await take(connection, lease, idempotent=turn % 2 == 0) for turn in range(4)]
    await reap_lease(connection, lease)
    before = [await whole(connection, task.id) for task in tasks]
    counted = await counters(connection)

    assert await reap.sweep(connection, sweeper(), [lease.id]) == reap.Reclaimed()

    assert [await whole(connection, task.id) for task in tasks] == before
    assert await counters(connection) == counted


async def test_a_sweep_takes_only_what_its_leases_hold(connection: AsyncConnection, lease: Lease, rival: Lease) -> None:
    mine, its = await take(connection, lease), await take(connection, rival)
    await end_lease(connection, rival)
    before = await whole(connection, its.id)

    assert await reap_lease(connection, lease) == reap.Reclaimed(requeued=1)

    assert (await row(connection, mine.id))["state"] == "QUEUED"
    assert await whole(connection, its.id) == before
    assert not await cleared(connection, rival)


async def hold_some(connection: AsyncConnection, lease: Lease, count: int) -> list[UUID]:
    for _ in range(count):
        await submit(connection)
    return [task.id for task in await claim_some(connection, lease, count)]


async def test_a_locked_row_is_left_for_the_next_sweep_and_stops_no_other(
    connection: AsyncConnection, other: AsyncConnection, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reap, "SWEEP_BATCH", 2)
    ids = sorted(await hold_some(connection, lease, 7))
    await end_lease(connection, lease)

    async with other.transaction():
        await other.execute("SELECT FROM fleet.task WHERE id = ANY (%s) FOR UPDATE", (ids[:3],))
        assert await reap.sweep(connection, sweeper(), [lease.id]) == reap.Reclaimed(requeued=4)
        assert not await cleared(connection, lease)

    assert await reap.sweep(connection, sweeper(), [lease.id]) == reap.Reclaimed(requeued=3)
    assert await cleared(connection, lease)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
async def test_a_sweep_goes_on_until_its_batches_are_empty(
    connection: AsyncConnection, lease: Lease, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(reap, "SWEEP_BATCH", 2)
    await hold_some(connection, lease, count)
    assert await reap_lease(connection, lease) == reap.Reclaimed(requeued=count)
    assert await cleared(connection, lease)


async def test_a_released_lease_is_swept_and_cleared_too(connection: AsyncConnection, lease: Lease) -> None:
    await take(connection, lease)
    await heartbeat.drain(connection, lease.id)
    await heartbeat.close(connection, lease)

    assert await reap.sweep(connection, sweeper(), [lease.id]) == reap.Reclaimed(requeued=1)
    assert await cleared(connection, lease)


async def test_suspects_that_moved_on_since_they_were_read_are_left_alone(
    connection: AsyncConnection, lease: Lease, rival: Lease
) -> None:
    """The fence is compared with the locked version: a stale reading takes nothing from a live lease."""
    stale = await take(connection, lease)
    done = await take(connection, lease)
    await reap_lease(connection, lease)
    await make_due(connection, stale.id, done.id)
    again = {task.id: task for task in await claim_some(connection, rival)}
    await settle_one(connection, again[done.id], Succeeded("1"))
    before = [await whole(connection, task.id) for task in (stale, done)]

    assert await reclaim(connection, [stale, done], lease) == (0, 0, 0)
    assert await reclaim(connection, [stale._replace(attempt=2)], lease) == (0, 0, 0)
    assert await reclaim(connection, [stale], rival) == (0, 0, 0)

    assert [await whole(connection, task.id) for task in (stale, done)] == before


async def reclaim(connection: AsyncConnection, tasks: list[ClaimedTask], lease: Lease) -> tuple[int, ...]:
    rows = await run(
        connection, reap.RECLAIM, me=uuid7(), ids=[task.id for task in tasks], attempts=[task.attempt for task in tasks],
        leases=[lease.id] * len(tasks), reasons=["why"] * len(tasks), backoff_base=MINUTE, backoff_cap=MINUTE,
    )  # fmt: skip
    return tuple(rows[0][:3])


async def test_two_sweepers_at_once_share_the_work_and_charge_each_loss_once(
    connection: AsyncConnection, other: AsyncConnection, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reap, "SWEEP_BATCH", 7)
    ids = await hold_some(connection, lease, 60)
    await end_lease(connection, lease)

    one, two = await asyncio.gather(*(reap.sweep(each, sweeper(), [lease.id]) for each in (connection, other)))
    rest = await reap.sweep(connection, sweeper(), [lease.id])

    assert one + two + rest == reap.Reclaimed(requeued=60)
    assert await scalar(connection, "SELECT array_agg(DISTINCT losses) FROM fleet.task WHERE id = ANY (%s)", ids) == [1]
    assert (await counters(connection))["reclaims", "default", ""] == 60


async def test_tasks_whose_lease_is_not_on_record_are_settled_by_the_same_rules(
    connection: AsyncConnection, lease: Lease, rival: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reap, "SWEEP_BATCH", 2)
    healthy = await take(connection, rival)
    lost = await hold_some(connection, lease, 4)
    unique = await take(connection, lease, idempotent=False)
    await connection.execute("DELETE FROM fleet.lease WHERE id = %s", (lease.id,))
    before = await whole(connection, healthy.id)

    assert await reap.sweep_orphans(connection, sweeper()) == reap.Reclaimed(requeued=4, failed=1)
    assert await reap.sweep_orphans(connection, sweeper()) == reap.Reclaimed()

    assert await whole(connection, healthy.id) == before
    assert {(await row(connection, task_id))["state"] for task_id in lost} == {"QUEUED"}
    failed = await row(connection, unique.id)
    assert failed["failure_code"] == "lease_expired"
    assert failed["failure_reason"] == f"worker exited before completion: lease {lease.id} is not on record"
    assert (await settle_one(connection, unique, Succeeded("1")))[0] is Verdict.FENCED


async def test_the_leases_are_read_until_they_are_cleared(
    connection: AsyncConnection, lease: Lease, rival: Lease
) -> None:
    await take(connection, lease)
    await expire_lease(connection, lease)
    seen = {each.id: each for each in (await reap.survey(connection)).leases}
    assert (seen[lease.id].expired, seen[lease.id].ended, seen[lease.id].ttl) == (True, False, MINUTE)
    assert (seen[rival.id].expired, seen[rival.id].ended) == (False, False)

    await end_lease(connection, lease)
    seen = {each.id: each for each in (await reap.survey(connection)).leases}
    assert seen[lease.id].ended

    await reap.sweep(connection, sweeper(), [lease.id])
    assert [each.id for each in (await reap.survey(connection)).leases] == [rival.id]
