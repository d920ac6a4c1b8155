"""Reapers against holders, in lock-step, in both orders: see stage.py."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.postgres import claim, heartbeat, reap
from fleet.postgres.database import AsyncConnection
from fleet.task import Succeeded, Verdict
from tests.postgres.stage import OUTCOMES, REPEATS, Stage, as_task, settling, tasks_of
from tests.postgres.steps import (
    MINUTE,
    end_lease,
    scalar,
    waits,
)
from tests.support import eventually, expire_lease, history, new_lease, renew, row, submit

pytestmark = pytest.mark.parametrize("time", range(REPEATS))


@pytest.mark.fault("Reaper", "a reap against a completion")
async def test_a_sweep_passes_over_a_task_that_is_being_settled_and_finds_it_done(stage: Stage, time: int) -> None:
    task = await stage.take()
    await end_lease(stage.watch, stage.lease)
    outcome = OUTCOMES[time % len(OUTCOMES)]

    waited, (verdict, state), swept = await stage.while_open(settling(task, outcome), stage.sweeping())

    assert (waited, verdict, swept) == (False, Verdict.SETTLED, reap.Reclaimed())
    assert await stage.sweeping()(stage.watch) == reap.Reclaimed()
    after = await row(stage.watch, task.id)
    assert (after["state"], after["losses"], after["attempt"]) == (state, 0, 1)


@pytest.mark.fault("Reaper", "a reap against a completion")
async def test_a_settlement_during_a_sweep_is_busy_and_then_fenced(stage: Stage, time: int) -> None:
    task = await stage.take(idempotent=bool(time % 2))
    await end_lease(stage.watch, stage.lease)
    settle = settling(task, OUTCOMES[time % len(OUTCOMES)])

    waited, swept, (verdict, _) = await stage.while_open(stage.sweeping(), settle)

    assert (waited, bool(swept), verdict) == (False, True, Verdict.BUSY)
    assert (await settle(stage.second))[0] is Verdict.FENCED
    assert await stage.state(task.id) == ("QUEUED" if time % 2 else "FAILED")
    assert await history(stage.watch, task.id) == [(1, False, "lost")]


async def test_a_settlement_during_a_sweep_that_is_undone_is_busy_and_then_settled(stage: Stage, time: int) -> None:
    task = await stage.take()
    await end_lease(stage.watch, stage.lease)
    settle = settling(task, Succeeded("1"))

    _, _, (verdict, _) = await stage.while_open(stage.sweeping(), settle, undo=True)

    assert verdict is Verdict.BUSY
    assert (await settle(stage.second))[0] is Verdict.SETTLED
    assert await history(stage.watch, task.id) == []


async def test_a_settlement_does_not_wait_for_the_mark(stage: Stage, time: int) -> None:
    task = await stage.take()
    await expire_lease(stage.watch, stage.lease)

    waited, marked, (verdict, _) = await stage.while_open(stage.marking(), settling(task, OUTCOMES[time % 5]))

    assert (waited, marked, verdict) == (False, [stage.lease.id], Verdict.SETTLED)
    assert await stage.sweeping()(stage.watch) == reap.Reclaimed()


async def test_two_sweeps_at_once_charge_one_loss(stage: Stage, time: int) -> None:
    task = await stage.take()
    await end_lease(stage.watch, stage.lease)

    waited, first, second = await stage.while_open(stage.sweeping(), stage.sweeping())

    assert (waited, first, second) == (False, reap.Reclaimed(requeued=1), reap.Reclaimed())
    assert (await row(stage.watch, task.id))["losses"] == 1


@pytest.mark.fault("Reaper", "a reap against a renewal")
async def test_a_lease_that_is_being_renewed_is_not_marked(stage: Stage, time: int) -> None:
    await expire_lease(stage.watch, stage.lease)

    waited, renewed, marked = await stage.while_open(lambda first: renew(first, stage.lease), stage.marking())

    assert (waited, renewed, marked) == (False, [("LIVE", None, None)], [])
    assert await stage.marking()(stage.second) == []


@pytest.mark.fault("Reaper", "a reap against a renewal")
async def test_a_renewal_waits_for_the_mark_and_is_told_that_the_lease_is_over(stage: Stage, time: int) -> None:
    await expire_lease(stage.watch, stage.lease)

    waited, marked, renewed = await stage.while_open(stage.marking(), lambda second: renew(second, stage.lease))

    assert (waited, marked, renewed) == (True, [stage.lease.id], [])


async def test_a_renewal_counts_from_after_its_wait(stage: Stage, time: int) -> None:
    async with stage.first.transaction(force_rollback=True):
        await reap.end(stage.first, uuid7(), [stage.lease.id])
        running = asyncio.create_task(renew(stage.second, stage.lease))
        assert await waits(stage.watch, running, stage.second)
        released = await scalar(stage.watch, "SELECT clock_timestamp()")
    assert await running == [("LIVE", None, None)]

    renewed_at = await scalar(stage.watch, "SELECT renewed_at FROM fleet.lease WHERE id = %s", stage.lease.id)
    expires_at = await scalar(stage.watch, "SELECT expires_at FROM fleet.lease WHERE id = %s", stage.lease.id)
    assert renewed_at > released
    assert expires_at >= released + MINUTE


@pytest.mark.fault("Reaper", "a reap against a claim")
async def test_a_lease_with_a_claim_in_flight_is_not_marked_and_loses_the_task_later(stage: Stage, time: int) -> None:
    task_id = await submit(stage.watch, queue=stage.queue)

    async def claim_until_expired(first: AsyncConnection) -> claim.Claimed | None:
        claimed = await stage.claiming(stage.lease)(first)
        await expire_lease(stage.watch, stage.lease)
        return claimed

    waited, claimed, marked = await stage.while_open(claim_until_expired, stage.marking())

    assert (waited, tasks_of(claimed), marked) == (False, [(task_id, 1)], [])
    assert await stage.marking()(stage.second) == [stage.lease.id]
    assert await stage.sweeping()(stage.second) == reap.Reclaimed(requeued=1)


@pytest.mark.parametrize("undo", [False, True], ids=["committed", "undone"])
async def test_a_claim_that_waits_for_its_lease_until_that_has_expired_gets_nothing(
    stage: Stage, time: int, undo: bool
) -> None:
    task_id = await submit(stage.watch, queue=stage.queue)
    over = "SELECT expires_at <= clock_timestamp() FROM fleet.lease WHERE id = %s"
    waited, milliseconds = False, 40
    while not waited:  # on a busy machine a short lease may have expired before the claim began
        short = await new_lease(stage.watch, ttl=timedelta(milliseconds=milliseconds), queues=[stage.queue])
        async with stage.first.transaction(force_rollback=undo):
            await stage.first.execute("SELECT FROM fleet.lease WHERE id = %s FOR UPDATE", (short.id,))
            running = asyncio.create_task(as_task(stage.claiming(short)(stage.second)))
            waited = await waits(stage.watch, running, stage.second)
            await eventually(lambda: scalar(stage.watch, over, short.id))  # noqa: B023 - called at once
            if not undo:
                assert await reap.mark(stage.first, uuid7(), [short.id]) == [short.id]
        assert await running is None
        milliseconds *= 4

    assert await stage.state(task_id) == "QUEUED"


@pytest.mark.fault("Reaper", "a reap against a claim")
async def test_a_claim_waits_for_the_end_of_its_lease_and_goes_on_if_that_is_undone(stage: Stage, time: int) -> None:
    task_id = await submit(stage.watch, queue=stage.queue)

    def ending(first: AsyncConnection) -> Awaitable[list[UUID]]:
        return reap.end(first, uuid7(), [stage.lease.id])

    waited, _, claimed = await stage.while_open(ending, stage.claiming(stage.lease), undo=True)
    assert (waited, tasks_of(claimed)) == (True, [(task_id, 1)])

    waited, _, claimed = await stage.while_open(ending, stage.claiming(stage.lease))
    assert (waited, claimed) == (True, None)


async def test_a_drain_waits_for_a_claim_in_flight_which_is_then_found(stage: Stage, time: int) -> None:
    task_id = await submit(stage.watch, queue=stage.queue)

    waited, claimed, drained = await stage.while_open(
        stage.claiming(stage.lease), lambda second: heartbeat.drain(second, stage.lease.id)
    )

    assert (waited, tasks_of(claimed), drained) == (True, [(task_id, 1)], True)
    assert [task.id for task in await claim.reconcile(stage.second, stage.lease, [])] == [task_id]
    assert await stage.claiming(stage.lease)(stage.first) is None


async def test_a_look_at_what_is_held_waits_for_a_claim_in_flight(stage: Stage, time: int) -> None:
    task_id = await submit(stage.watch, queue=stage.queue)

    waited, _, found = await stage.while_open(
        stage.claiming(stage.lease), lambda second: claim.reconcile(second, stage.lease, [])
    )

    assert (waited, [(task.id, task.attempt) for task in found]) == (True, [(task_id, 1)])
