"""Every way to end an attempt, by every way not to hold it any more: refused, and nothing changed.

A new verb is one line in OUTCOMES, a new way to lose an attempt one function in LOST.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import cancel, claim, dead_letter, expire, settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Cancelled, ClaimedTask, Outcome, Released, Settlement, Succeeded, Verdict
from tests.postgres.steps import MINUTE, NOW, end_lease, error, make_due, reap_lease, settle_one, take, whole
from tests.support import claim_some, counters, history, new_lease

OUTCOMES: dict[str, Outcome] = {
    "succeed": Succeeded('"late"'),
    "retry": error(NOW),
    "retry later": error(MINUTE),
    "fail": error(None),
    "release": Released("late"),
    "cancelled": Cancelled("late"),
}


@dataclass(frozen=True, slots=True)
class Scene:
    connection: AsyncConnection
    queue: str
    lease: Lease
    rival: Lease

    async def take(self, *, idempotent: bool = True) -> ClaimedTask:
        return await take(self.connection, self.lease, idempotent=idempotent, queue=self.queue)

    async def claim_again(self, stale: ClaimedTask, lease: Lease) -> ClaimedTask:
        await make_due(self.connection, stale.id)
        (task,) = await claim_some(self.connection, lease, 1, queue=self.queue)
        assert (task.id, task.attempt) == (stale.id, stale.attempt + 1)
        return task


@pytest.fixture
def database_url(shared_url: str) -> str:
    return shared_url


@pytest.fixture
def scene(connection: AsyncConnection, queue: str, lease: Lease, rival: Lease) -> Scene:
    return Scene(connection, queue, lease, rival)


async def held_by_another_lease(scene: Scene) -> ClaimedTask:
    return (await scene.take())._replace(lease=scene.rival)


async def held_by_another_lease_of_the_same_worker(scene: Scene) -> ClaimedTask:
    successor = await new_lease(scene.connection, worker=scene.lease.worker, ttl=MINUTE, queues=[scene.queue])
    return (await scene.take())._replace(lease=successor)


async def under_a_lease_that_never_was(scene: Scene) -> ClaimedTask:
    return (await scene.take())._replace(lease=Lease(uuid7(), "nobody", MINUTE))


async def of_an_attempt_to_come(scene: Scene) -> ClaimedTask:
    task = await scene.take()
    return task._replace(attempt=task.attempt + 1)


async def claimed_again_by_a_rival(scene: Scene) -> ClaimedTask:
    stale = await scene.take()
    await reap_lease(scene.connection, scene.lease)
    await scene.claim_again(stale, scene.rival)
    return stale


async def claimed_again_by_a_rival_whose_lease_is_shown(scene: Scene) -> ClaimedTask:
    stale = await claimed_again_by_a_rival(scene)
    return stale._replace(lease=scene.rival)


async def reclaimed_from_a_repeatable_holder(scene: Scene) -> ClaimedTask:
    stale = await scene.take()
    await reap_lease(scene.connection, scene.lease)
    return stale


async def reclaimed_from_a_holder_not_repeatable(scene: Scene) -> ClaimedTask:
    stale = await scene.take(idempotent=False)
    await reap_lease(scene.connection, scene.lease)
    return stale


async def reclaimed_after_an_earlier_attempt_of_the_same_lease_was_given_back(scene: Scene) -> ClaimedTask:
    first = await scene.take()
    for outcome in (error(NOW), Released("not now")):
        await settle_one(scene.connection, first, outcome)
        first = await scene.claim_again(first, scene.lease)
    await reap_lease(scene.connection, scene.lease)
    return first


async def lost_and_done_by_a_rival(scene: Scene) -> ClaimedTask:
    stale = await claimed_again_by_a_rival(scene)
    successor = stale._replace(attempt=stale.attempt + 1, lease=scene.rival)
    assert (await settle_one(scene.connection, successor, Succeeded('"first"')))[0] is Verdict.SETTLED
    return stale


async def lost_and_cancelled_while_waiting(scene: Scene) -> ClaimedTask:
    stale = await reclaimed_from_a_repeatable_holder(scene)
    await cancel.cancel(scene.connection, [stale.id], "operator")
    return stale


async def lost_and_expired_while_waiting(scene: Scene) -> ClaimedTask:
    stale = await reclaimed_from_a_repeatable_holder(scene)
    await scene.connection.execute("UPDATE fleet.task SET expires_at = clock_timestamp() WHERE id = %s", (stale.id,))
    assert await expire.expire(scene.connection, uuid7()) >= 1
    return stale


async def lost_and_requeued_by_an_operator(scene: Scene) -> ClaimedTask:
    stale = await reclaimed_from_a_holder_not_repeatable(scene)
    assert await dead_letter.requeue(scene.connection, {stale.id: stale.attempt}, "operator") == [stale.id]
    return stale


async def lost_and_discarded_by_an_operator(scene: Scene) -> ClaimedTask:
    stale = await reclaimed_from_a_holder_not_repeatable(scene)
    assert await dead_letter.discard(scene.connection, {stale.id: stale.attempt}, "operator") == [stale.id]
    return stale


async def lost_and_pruned(scene: Scene) -> ClaimedTask:
    stale = await lost_and_done_by_a_rival(scene)
    await scene.connection.execute("DELETE FROM fleet.task WHERE id = %s", (stale.id,))
    return stale


LOST: list[Callable[[Scene], Awaitable[ClaimedTask]]] = [
    held_by_another_lease,
    held_by_another_lease_of_the_same_worker,
    under_a_lease_that_never_was,
    of_an_attempt_to_come,
    claimed_again_by_a_rival,
    claimed_again_by_a_rival_whose_lease_is_shown,
    reclaimed_from_a_repeatable_holder,
    reclaimed_from_a_holder_not_repeatable,
    reclaimed_after_an_earlier_attempt_of_the_same_lease_was_given_back,
    lost_and_done_by_a_rival,
    lost_and_cancelled_while_waiting,
    lost_and_expired_while_waiting,
    lost_and_requeued_by_an_operator,
    lost_and_discarded_by_an_operator,
    lost_and_pruned,
]


@pytest.mark.parametrize("lose", LOST, ids=lambda lose: lose.__name__)
@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
async def test_an_attempt_that_is_not_held_cannot_be_ended(
    scene: Scene, lose: Callable[[Scene], Awaitable[ClaimedTask]], outcome: Outcome
) -> None:
    stale = await lose(scene)
    before = await whole(scene.connection, stale.id)
    counted = await counters(scene.connection)

    for _ in range(2):
        assert (await settle_one(scene.connection, stale, outcome))[0] is Verdict.FENCED

    assert await whole(scene.connection, stale.id) == before
    assert await counters(scene.connection) == counted

    await settle.record_late(scene.connection, stale.lease, [Settlement(stale, outcome)])
    assert (await settle_one(scene.connection, stale, outcome))[0] is Verdict.FENCED


@pytest.mark.parametrize("lose", LOST, ids=lambda lose: lose.__name__)
async def test_a_late_report_is_kept_and_counted_once_and_changes_nothing(
    scene: Scene, lose: Callable[[Scene], Awaitable[ClaimedTask]]
) -> None:
    stale = await lose(scene)
    before = await whole(scene.connection, stale.id)

    for outcome in OUTCOMES.values():
        await settle.record_late(scene.connection, stale.lease, [Settlement(stale, outcome)])

    assert await whole(scene.connection, stale.id) == before
    late = [entry for entry in await history(scene.connection, stale.id) if entry[1]]
    assert late == [(stale.attempt, True, "succeeded")]
    assert (await counters(scene.connection))["fence_rejections", scene.queue, ""] == 1


@pytest.mark.parametrize("lose", LOST, ids=lambda lose: lose.__name__)
async def test_an_attempt_that_is_not_held_is_not_given_its_arguments(
    scene: Scene, lose: Callable[[Scene], Awaitable[ClaimedTask]]
) -> None:
    assert await claim.fetch_args(scene.connection, await lose(scene)) is None


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
async def test_an_attempt_released_and_claimed_again_under_the_same_lease_cannot_be_ended_twice(
    scene: Scene, outcome: Outcome
) -> None:
    stale = await scene.take()
    await settle_one(scene.connection, stale, Released("not now"))
    await scene.claim_again(stale, scene.lease)
    before = await whole(scene.connection, stale.id)

    verdict, _ = await settle_one(scene.connection, stale, outcome)

    assert verdict is (Verdict.ALREADY if isinstance(outcome, Released) else Verdict.FENCED)
    assert await whole(scene.connection, stale.id) == before


@pytest.mark.parametrize("second", OUTCOMES.values(), ids=[f"then {name}" for name in OUTCOMES])
@pytest.mark.parametrize("first", OUTCOMES.values(), ids=OUTCOMES)
async def test_the_first_word_about_an_attempt_stands_and_only_its_repetition_is_recognised(
    scene: Scene, first: Outcome, second: Outcome
) -> None:
    task = await scene.take()
    assert (await settle_one(scene.connection, task, first))[0] is Verdict.SETTLED
    before = await whole(scene.connection, task.id)

    verdict, _ = await settle_one(scene.connection, task, second)

    assert verdict is (Verdict.ALREADY if type(first) is type(second) else Verdict.FENCED)
    assert await whole(scene.connection, task.id) == before


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
async def test_the_end_of_an_attempt_is_not_recognised_under_another_lease(scene: Scene, outcome: Outcome) -> None:
    task = await scene.take()
    await settle_one(scene.connection, task, outcome)
    before = await whole(scene.connection, task.id)

    verdict, _ = await settle_one(scene.connection, task._replace(lease=scene.rival), outcome)

    # A SUCCEEDED row keeps no lease: there the attempt alone is compared. Nothing is written either way.
    assert verdict is (Verdict.ALREADY if isinstance(outcome, Succeeded) else Verdict.FENCED)
    assert await whole(scene.connection, task.id) == before


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
async def test_a_lease_that_is_marked_but_not_swept_may_still_end_its_attempts(scene: Scene, outcome: Outcome) -> None:
    task = await scene.take()
    await end_lease(scene.connection, scene.lease)

    assert (await settle_one(scene.connection, task, outcome))[0] is Verdict.SETTLED
