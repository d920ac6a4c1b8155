"""What a claim takes, in which order, for whom, and how much."""

import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import cancel, claim, heartbeat, queue, reap
from fleet.postgres.database import AsyncConnection
from fleet.task import ClaimedTask, Released
from tests.postgres.steps import (
    MINUTE,
    at_the_same_moment,
    end_lease,
    lanes_of,
    make_due,
    reap_lease,
    scalar,
    settle_one,
    take,
)
from tests.support import claim_some, expire_lease, new_lease, renew, row, submit

HANDLERS = {"work": True}


async def claimed(
    connection: AsyncConnection,
    lease: Lease,
    lanes: list[claim.Lane],
    free: int = 10,
    handlers: dict[str, bool] | None = None,
) -> list[UUID]:
    answer = await claim.claim(connection, lease, lanes, handlers or HANDLERS, free)
    assert answer is not None
    return [task.id for task in sorted(answer.tasks, key=lambda task: (task.run_at, task.id))]


async def test_a_claimed_task_runs_under_the_lease_as_its_next_attempt(
    connection: AsyncConnection, lease: Lease
) -> None:
    task_id = await submit(connection, args='{"a": 1}', priority=3, timeout=MINUTE)

    (task,) = await claim_some(connection, lease)

    after = await row(connection, task_id)
    assert (after["state"], after["attempt"], after["lease_id"], after["repeatable"]) == ("RUNNING", 1, lease.id, True)
    assert after["started_at"] >= after["created_at"]
    assert task == ClaimedTask(
        task_id, "work", "default", 3, after["run_at"], 1, True, 0, 0, MINUTE, '{"a": 1}', None, lease
    )  # fmt: skip


async def test_attempts_are_numbered_1_2_3_whatever_ended_the_one_before(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease)
    await settle_one(connection, task, Released("later"))
    (second,) = await claim_some(connection, lease)
    await reap_lease(connection, lease)
    await make_due(connection, task.id)
    (third,) = await claim_some(connection, await new_lease(connection, ttl=MINUTE))

    assert (task.attempt, second.attempt, third.attempt) == (1, 2, 3)
    assert (third.failures, third.losses) == (0, 1)


@pytest.mark.parametrize(("handler", "submitter", "repeatable"), [
    (True, None, True), (True, False, False), (True, True, True),
    (False, None, False), (False, False, False), (False, True, False),
])  # fmt: skip
async def test_a_task_is_repeatable_if_its_handler_is_and_its_submitter_does_not_object(
    connection: AsyncConnection, lease: Lease, handler: bool, submitter: bool | None, repeatable: bool
) -> None:
    task = await take(connection, lease, idempotent=handler)
    assert task.repeatable is handler

    task_id = await submit(connection, idempotent=submitter)
    (task,) = await claim_some(connection, lease, idempotent=handler)
    assert (task.id, task.repeatable) == (task_id, repeatable)
    assert (await row(connection, task_id))["repeatable"] is repeatable


async def test_the_word_of_the_claiming_code_replaces_that_of_an_earlier_claim(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease, idempotent=True)
    await settle_one(connection, task, Released("later"))

    (again,) = await claim_some(connection, lease, idempotent=False)

    assert again.repeatable is False
    assert (await row(connection, task.id))["repeatable"] is False


async def test_a_claim_never_takes_more_than_asked_and_takes_the_first_lanes_first(
    connection: AsyncConnection, lease: Lease
) -> None:
    ids = [await submit(connection, priority=priority) for priority in (7, 0, 3) for _ in range(3)]
    urgent, middle, late = ids[3:6], ids[6:9], ids[0:3]

    assert await claimed(connection, lease, lanes_of("default"), 5) == urgent + middle[:2]
    assert await claimed(connection, lease, lanes_of("default"), 1) == middle[2:]
    assert await claimed(connection, lease, lanes_of("default"), 5) == late


async def test_lanes_are_visited_in_the_order_in_which_they_are_given(
    connection: AsyncConnection, lease: Lease
) -> None:
    ids = {priority: await submit(connection, priority=priority) for priority in range(10)}
    backwards = list(reversed(lanes_of("default")))

    for priority in reversed(range(10)):
        assert await claimed(connection, lease, backwards, 1) == [ids[priority]]


async def test_inside_a_lane_the_task_that_is_due_longest_goes_first(connection: AsyncConnection, lease: Lease) -> None:
    ids = [await submit(connection) for _ in range(4)]
    for age, task_id in enumerate(ids):
        await connection.execute(
            "UPDATE fleet.task SET run_at = run_at - %s WHERE id = %s", (timedelta(hours=1 + age), task_id)
        )

    assert [(await claimed(connection, lease, lanes_of("default"), 1))[0] for _ in ids] == ids[::-1]


async def test_tasks_due_at_the_same_moment_go_in_the_order_of_their_ids(
    connection: AsyncConnection, lease: Lease
) -> None:
    ids = [await submit(connection) for _ in range(4)]
    await connection.execute("UPDATE fleet.task SET run_at = now()")
    assert [(await claimed(connection, lease, lanes_of("default"), 1))[0] for _ in ids] == ids


async def test_a_claim_goes_on_exactly_behind_its_position(connection: AsyncConnection, lease: Lease) -> None:
    first, second = await submit(connection), await submit(connection)
    key = claim.Position((await row(connection, first))["run_at"].isoformat(), first)

    assert await claimed(connection, lease, lanes_of("default", position=key)) == [second]
    before = claim.Position(key.run_at, UUID(int=first.int - 1))
    assert await claimed(connection, lease, lanes_of("default", position=before)) == [first]


async def test_a_queue_that_is_not_asked_for_is_left_alone(
    connection: AsyncConnection, lease: Lease, queue: str
) -> None:
    await submit(connection)
    assert await claimed(connection, lease, lanes_of(queue)) == []


@pytest.mark.fault("Payloads", "an unknown task name")
async def test_only_names_with_handlers_are_taken_and_others_do_not_use_up_the_limit(
    connection: AsyncConnection, lease: Lease
) -> None:
    await submit(connection, name="foreign")
    known = await submit(connection, name="known")
    await submit(connection, name="foreign")
    other = await submit(connection, name="other")

    assert await claimed(connection, lease, lanes_of("default"), 2, {"known": True, "other": False}) == [known, other]


async def test_a_delayed_task_waits_and_is_taken_at_its_very_moment(connection: AsyncConnection, lease: Lease) -> None:
    task_id = await submit(connection, delay=timedelta(hours=1))
    assert await claimed(connection, lease, lanes_of("default")) == []

    values = claim_values(lease)
    rows = await at_the_same_moment(
        connection,
        "UPDATE fleet.task SET run_at = statement_timestamp() + interval '1 microsecond'",
        claim.CLAIM,
        **values,
    )
    assert [row[0] for row in rows] == [None]
    rows = await at_the_same_moment(
        connection, "UPDATE fleet.task SET run_at = statement_timestamp()", claim.CLAIM, **values
    )
    assert [row[0] for row in rows] == [None, task_id]


async def test_a_task_is_not_taken_from_its_expiry_on(connection: AsyncConnection, lease: Lease) -> None:
    task_id = await submit(connection)
    values = claim_values(lease)

    rows = await at_the_same_moment(
        connection, "UPDATE fleet.task SET expires_at = statement_timestamp()", claim.CLAIM, **values
    )
    assert [row[0] for row in rows] == [None]
    rows = await at_the_same_moment(
        connection,
        "UPDATE fleet.task SET expires_at = statement_timestamp() + interval '1 microsecond'",
        claim.CLAIM,
        **values,
    )
    assert [row[0] for row in rows] == [None, task_id]


def claim_values(lease: Lease) -> dict[str, object]:
    return {
        "lease": lease.id, "names": ["work"], "idempotents": [True], "free": 10, "inline_bytes": 8192,
        "queues": ["default"], "priorities": [5], "run_ats": ["-infinity"], "ids": [UUID(int=0)],
    }  # fmt: skip


async def test_a_paused_queue_gives_nothing_and_its_neighbour_does(connection: AsyncConnection, lease: Lease) -> None:
    await new_lease(connection, queues=["open"])
    waiting, free = await submit(connection), await submit(connection, queue="open")
    await queue.pause(connection, "default", "operator")
    assert await claimed(connection, lease, lanes_of("default", "open")) == [free]

    await queue.resume(connection, "default", "operator")
    assert await claimed(connection, lease, lanes_of("default", "open")) == [waiting]


async def test_what_is_not_waiting_is_not_taken(connection: AsyncConnection, lease: Lease, rival: Lease) -> None:
    await take(connection, rival)
    cancelled = await submit(connection)
    await cancel.cancel(connection, [cancelled], "operator")
    assert await claimed(connection, lease, lanes_of("default")) == []


async def _drain(connection: AsyncConnection, lease: Lease) -> None:
    assert await heartbeat.drain(connection, lease.id)


async def _release(connection: AsyncConnection, lease: Lease) -> None:
    await _drain(connection, lease)
    assert await heartbeat.close(connection, lease)


async def _kill(connection: AsyncConnection, lease: Lease) -> None:
    assert await reap.end(connection, uuid7(), [lease.id]) == [lease.id]


async def _forget(connection: AsyncConnection, lease: Lease) -> None:
    await connection.execute("DELETE FROM fleet.lease WHERE id = %s", (lease.id,))


@pytest.mark.parametrize("over", [expire_lease, _drain, _release, end_lease, _kill, _forget])
async def test_a_lease_that_is_not_good_any_more_claims_nothing_and_is_told(
    connection: AsyncConnection, lease: Lease, over: Callable[[AsyncConnection, Lease], Awaitable[None]]
) -> None:
    task_id = await submit(connection)
    assert await claim.claim(connection, lease, [], HANDLERS, 10) is not None
    await over(connection, lease)

    assert await claim.claim(connection, lease, lanes_of("default"), HANDLERS, 10) is None
    assert (await row(connection, task_id))["state"] == "QUEUED"


async def test_an_expired_lease_that_was_renewed_claims_again(connection: AsyncConnection, lease: Lease) -> None:
    task_id = await submit(connection)
    await expire_lease(connection, lease)
    assert await renew(connection, lease) == [("LIVE", None, None)]
    assert await claimed(connection, lease, lanes_of("default")) == [task_id]


async def test_a_good_lease_with_nothing_to_do_is_told_the_moment_and_the_generations(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease, priority=1)
    await settle_one(connection, task, Released("later"))
    await queue.pause(connection, "default", "operator")
    begin = await scalar(connection, "SELECT clock_timestamp()")

    answer = await claim.claim(connection, lease, lanes_of("default", "unknown"), HANDLERS, 10)

    assert answer is not None
    assert (answer.tasks, answer.generations) == ([], {"default": 1})
    assert answer.seen >= begin
    peeked = await claim.peek(connection, lanes_of("default", "unknown"), ["work"])
    assert (peeked.ready, peeked.generations) == (False, {"default": 1})


@pytest.mark.parametrize(("size", "inline"), [(8192, True), (8193, False), (200_000, False)])
async def test_large_arguments_are_fetched_apart(
    connection: AsyncConnection, lease: Lease, size: int, inline: bool
) -> None:
    args = '{"a": "' + "x" * (size - len('{"a": ""}')) + '"}'
    task = await take(connection, lease, args=args)
    assert task.args == (args if inline else None)
    assert await claim.fetch_args(connection, task) == args


async def test_reconciling_finds_what_the_lease_holds_and_its_process_does_not_know(
    connection: AsyncConnection, lease: Lease, rival: Lease
) -> None:
    known, unknown = await take(connection, lease, args='{"a": 1}'), await take(connection, lease, args='{"a": 2}')
    await take(connection, rival)

    assert await claim.reconcile(connection, lease, [known.id]) == [unknown._replace(args=None)]
    assert await claim.reconcile(connection, lease, [known.id, unknown.id]) == []


SWITCHES = ("hashjoin", "mergejoin", "nestloop", "seqscan", "indexscan", "bitmapscan", "material")


@pytest.mark.parametrize("statistics", [False, True], ids=["without statistics", "with statistics"])
async def test_the_limit_and_the_order_hold_under_every_plan(
    connection: AsyncConnection, lease: Lease, statistics: bool
) -> None:
    names = [f"queue-{number}" for number in range(8)]
    lanes = [claim.Lane(name, priority, claim.HEAD) for priority in range(5) for name in names]
    await new_lease(connection, queues=names)
    await connection.execute(
        """
        INSERT INTO fleet.task (id, queue, name, priority, max_attempts, max_losses)
        SELECT lpad(to_hex(number), 32, '0')::uuid, 'queue-' || number % 8, 'work', number / 8 % 5, 9, 9
        FROM generate_series(1, 400) AS number
        """
    )
    if statistics:
        await connection.execute("ANALYZE fleet.task, fleet.lease, fleet.queue")
    expected = [task_id for lane in lanes[:3] for task_id in await ids_of(connection, lane)][:25]
    for settings in itertools.product(("on", "off"), repeat=len(SWITCHES)):
        for name, value in zip(SWITCHES, settings, strict=True):
            await connection.execute(f"SET enable_{name} = {value}".encode())
        async with connection.transaction(force_rollback=True):
            answer = await claim.claim(connection, lease, lanes, HANDLERS, 25)
            assert answer is not None
            assert sorted(task.id for task in answer.tasks) == sorted(expected)
            assert await scalar(connection, "SELECT count(*) FROM fleet.task WHERE state = 'RUNNING'") == 25
            held = "SELECT count(*) FROM fleet.task WHERE state = 'QUEUED' AND xmax = pg_current_xact_id()::xid"
            assert await scalar(connection, held) == 0, "rows were locked beyond those that were claimed"


async def ids_of(connection: AsyncConnection, lane: claim.Lane) -> list[UUID]:
    cursor = await connection.execute(
        "SELECT id FROM fleet.task WHERE queue = %s AND priority = %s ORDER BY run_at, id", (lane.queue, lane.priority)
    )
    return [row[0] for row in await cursor.fetchall()]
