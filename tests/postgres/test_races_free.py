"""The same races without a conductor: everything at once, and then the books must balance."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.lease import Lease
from fleet.postgres import cancel, claim, reap, settle
from fleet.postgres.database import AsyncConnection, Database
from fleet.task import Cancelled, ClaimedTask, Outcome, Released, Settlement, Succeeded, Verdict
from tests.postgres.steps import MINUTE, NOW, error, lanes_of, scalar, settle_one, take
from tests.support import claim_some, expire_lease, history, new_lease, renew, row, submit

REPEATS = 20
AT_ONCE = reap.Sweeper(uuid7(), NOW, NOW)


@pytest.fixture(scope="module")
async def connections(shared_url: str) -> AsyncIterator[list[AsyncConnection]]:
    database = Database(shared_url, Settings(ttl=MINUTE))
    opened = [await database.connect(f"free {number}") for number in range(6)]
    yield opened
    for connection in opened:
        await connection.close()


async def reap_now(connection: AsyncConnection, lease: Lease) -> list[UUID]:
    marked = await reap.mark(connection, uuid7(), [lease.id])
    await reap.sweep(connection, AT_ONCE, [lease.id])
    return marked


async def try_to_claim(connection: AsyncConnection, lease: Lease, queue: str) -> list[ClaimedTask]:
    claimed = await claim.claim(connection, lease, lanes_of(queue), {"work": True}, 10)
    return claimed.tasks if claimed else []


async def orphans(connection: AsyncConnection, queue: str) -> int:
    return int(
        await scalar(
            connection,
            """
            SELECT count(*) FROM fleet.task LEFT JOIN fleet.lease ON lease.id = task.lease_id
            WHERE task.queue = %s AND task.state = 'RUNNING' AND lease.state IS DISTINCT FROM 'LIVE'
            """,
            queue,
        )
    )


@pytest.mark.parametrize(
    "outcome", [Succeeded("1"), error(NOW), error(None), Released("later")], ids=lambda o: type(o).__name__
)
async def test_an_attempt_is_ended_by_its_holder_or_by_the_reaper(
    connections: list[AsyncConnection], queue: str, outcome: Outcome
) -> None:
    one, two, three, *_ = connections
    ends: Counter[str] = Counter()
    for _ in range(REPEATS):
        lease = await new_lease(one, ttl=MINUTE, queues=[queue])
        task = await take(one, lease, queue=queue)
        await expire_lease(one, lease)

        (verdict, _), *_ = await asyncio.gather(
            settle_one(one, task, outcome), reap_now(two, lease), reap_now(three, lease)
        )
        while verdict is Verdict.BUSY:
            verdict, _ = await settle_one(one, task, outcome)
        await reap_now(two, lease)

        after = await row(one, task.id)
        ended = [name for _, _, name in await history(one, task.id)]
        if verdict is Verdict.SETTLED:
            assert after["losses"] == 0
            assert "lost" not in ended
        else:
            assert verdict is Verdict.FENCED
            assert (after["losses"], ended, after["failures"]) == (1, ["lost"], 0)
        assert after["attempt"] == 1
        assert await orphans(one, queue) == 0
        ends[verdict] += 1
        await cancel.cancel(one, [task.id], "test")
    assert ends.total() == REPEATS


async def test_a_lease_is_renewed_or_marked_never_both(connections: list[AsyncConnection], queue: str) -> None:
    one, two, three, *_ = connections
    for _ in range(REPEATS):
        lease = await new_lease(one, ttl=MINUTE, queues=[queue])
        await expire_lease(one, lease)

        renewed, *marks = await asyncio.gather(renew(one, lease), reap_now(two, lease), reap_now(three, lease))

        marked = [lease_id for marks_of_one in marks for lease_id in marks_of_one]
        state = await scalar(one, "SELECT state FROM fleet.lease WHERE id = %s", lease.id)
        assert (bool(renewed), marked, state) in [(True, [], "LIVE"), (False, [lease.id], "REAPED")]


async def test_whatever_a_dying_lease_claims_is_swept(connections: list[AsyncConnection], queue: str) -> None:
    one, two, three, *_ = connections
    for _ in range(REPEATS):
        lease = await new_lease(one, ttl=MINUTE, queues=[queue])
        task_id = await submit(one, queue=queue)

        async def end(connection: AsyncConnection, lease: Lease = lease) -> None:
            await reap.end(connection, uuid7(), [lease.id])
            await reap.sweep(connection, AT_ONCE, [lease.id])

        claimed, *_ = await asyncio.gather(try_to_claim(one, lease, queue), end(two), end(three))
        await reap.sweep(two, AT_ONCE, [lease.id])

        after = await row(one, task_id)
        assert (after["state"], after["attempt"], after["losses"]) == ("QUEUED", len(claimed), len(claimed))
        assert await scalar(one, "SELECT cleared_at IS NOT NULL FROM fleet.lease WHERE id = %s", lease.id)
        await cancel.cancel(one, [task_id], "test")


async def test_a_released_task_is_claimed_by_one_of_two(connections: list[AsyncConnection], queue: str) -> None:
    one, two, three, *_ = connections
    holder, left, right = [await new_lease(one, ttl=MINUTE, queues=[queue]) for _ in range(3)]
    for _ in range(REPEATS):
        task = await take(one, holder, queue=queue)

        _, at_left, at_right = await asyncio.gather(
            settle_one(one, task, Released("later")), try_to_claim(two, left, queue), try_to_claim(three, right, queue)
        )
        if not at_left and not at_right:
            at_left = await try_to_claim(two, left, queue)

        (got,) = at_left + at_right
        assert (got.id, got.attempt) == (task.id, 2)
        assert (await settle_one(one, got, Succeeded("1")))[0] is Verdict.SETTLED


@pytest.mark.fault("Submit", "a cancel against a claim")
async def test_a_cancelled_task_is_not_started_or_its_holder_is_told(
    connections: list[AsyncConnection], queue: str
) -> None:
    one, two, three, *_ = connections
    for _ in range(REPEATS):
        lease = await new_lease(one, ttl=MINUTE, queues=[queue])
        task_id = await submit(one, queue=queue)

        claimed, *_ = await asyncio.gather(
            try_to_claim(one, lease, queue),
            cancel.cancel(two, [task_id], "left"),
            cancel.cancel(three, [task_id], "right"),
        )

        asked = {(task, attempt) for _, task, attempt in await renew(one, lease) if task is not None}
        if claimed:
            assert asked == {(task_id, 1)}
            assert (await settle_one(one, claimed[0], Cancelled("asked to")))[0] is Verdict.SETTLED
        else:
            assert asked == set()
        assert (await row(one, task_id))["state"] == "CANCELLED"


async def test_batches_that_share_tasks_in_opposite_orders_settle_each_once(
    connections: list[AsyncConnection], queue: str
) -> None:
    lease = await new_lease(connections[0], ttl=MINUTE, queues=[queue])
    for turn in range(REPEATS):
        for _ in range(20):
            await submit(connections[0], queue=queue)
        tasks = await claim_some(connections[0], lease, 20, queue=queue)
        outcome: Outcome = Succeeded("1") if turn % 2 else Cancelled("asked to")
        write = settle.succeed if turn % 2 else settle.give_back
        batches = [[Settlement(task, outcome) for task in tasks[::way]] for way in (1, -1, 1, -1)]

        answers = await asyncio.gather(
            *(write(connection, lease, batch) for connection, batch in zip(connections, batches, strict=False))
        )

        for task in tasks:
            verdicts = Counter(answer[task.id, task.attempt][0] for answer in answers)
            assert verdicts[Verdict.SETTLED] == 1
            assert set(verdicts) <= {Verdict.SETTLED, Verdict.ALREADY, Verdict.BUSY, Verdict.FENCED}
        assert (
            await scalar(
                connections[0], "SELECT count(*) FROM fleet.task WHERE queue = %s AND state = 'RUNNING'", queue
            )
            == 0
        )


class Fleet:
    """Workers that die, lose their leases, and come back as zombies; and the books of all that they were told."""

    def __init__(self, queue: str, seed: int) -> None:
        self.queue = queue
        self.chance = random.Random(seed)
        self.handed_out: Counter[tuple[UUID, int]] = Counter()
        self.succeeded: Counter[UUID] = Counter()
        self.zombies: list[tuple[ClaimedTask, Outcome]] = []
        self.dying: list[Lease] = []
        self.done = False

    async def work(self, connection: AsyncConnection) -> None:
        lease = await new_lease(connection, ttl=MINUTE, queues=[self.queue])
        while not self.done:
            tasks = await try_to_claim(connection, lease, self.queue)
            self.handed_out.update((task.id, task.attempt) for task in tasks)
            await self.settle(connection, [(task, self.pick()) for task in tasks if self.chance.random() < 0.9], lease)
            if self.chance.random() < 0.3:
                self.zombies += [(task, Succeeded('"late"')) for task in tasks]
                await expire_lease(connection, lease)
                self.dying.append(lease)
                lease = await new_lease(connection, ttl=MINUTE, queues=[self.queue])
            elif held := await claim.reconcile(connection, lease, []):
                await self.settle(connection, [(task, Released("lost")) for task in held], lease)
            if not tasks:
                self.done = await self.finished(connection)

    def pick(self) -> Outcome:
        outcomes: list[Outcome] = [Succeeded('"done"'), error(NOW), Released("later")]
        return self.chance.choices(outcomes, [6, 2, 2])[0]

    async def settle(self, connection: AsyncConnection, ends: list[tuple[ClaimedTask, Outcome]], lease: Lease) -> None:
        for write, well in ((settle.succeed, True), (settle.give_back, False)):
            waiting = [Settlement(task, outcome) for task, outcome in ends if isinstance(outcome, Succeeded) is well]
            while waiting:
                answers = await write(connection, lease, waiting)
                self.succeeded.update(
                    one.task.id
                    for one in waiting
                    if well and answers[one.task.id, one.task.attempt][0] is Verdict.SETTLED
                )
                waiting = [one for one in waiting if answers[one.task.id, one.task.attempt][0] is Verdict.BUSY]

    async def haunt(self, connection: AsyncConnection) -> None:
        while not self.done:
            zombies, self.zombies = self.zombies, []
            for task, outcome in zombies:
                await self.settle(connection, [(task, outcome)], task.lease)
            await asyncio.sleep(0)

    async def reap(self, connection: AsyncConnection) -> None:
        while not self.done:
            for lease in list(self.dying):
                await reap_now(connection, lease)
            await asyncio.sleep(0)

    async def finished(self, connection: AsyncConnection) -> bool:
        return not await scalar(
            connection,
            "SELECT count(*) FROM fleet.task WHERE queue = %s AND state IN ('QUEUED', 'RUNNING')",
            self.queue,
        )


@pytest.mark.parametrize("seed", range(3))
async def test_every_task_of_a_dying_fleet_succeeds_exactly_once(
    connections: list[AsyncConnection], queue: str, seed: int
) -> None:
    budget = 1_000_000
    ids = [await submit(connections[0], queue=queue, max_attempts=budget, max_losses=budget) for _ in range(150)]
    fleet = Fleet(queue, seed)

    one, two, three, four, five, six = connections
    async with asyncio.timeout(60):
        await asyncio.gather(
            fleet.work(one), fleet.work(two), fleet.work(three), fleet.haunt(four), fleet.reap(five), fleet.reap(six)
        )

    assert fleet.succeeded == Counter(ids)
    assert set(fleet.handed_out.values()) == {1}
    assert fleet.dying
    assert await orphans(one, queue) == 0
    for task_id in ids:
        after = await row(one, task_id)
        entries = await history(one, task_id)
        attempts = sorted(attempt for task, attempt in fleet.handed_out if task == task_id)
        outcomes = Counter(outcome for _, _, outcome in entries)
        assert after["state"] == "SUCCEEDED"
        assert attempts == list(range(1, after["attempt"] + 1))
        assert [attempt for attempt, _, _ in entries] == attempts[:-1]
        assert (outcomes["lost"], outcomes["error"]) == (after["losses"], after["failures"])
