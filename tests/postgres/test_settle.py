"""The ends of attempts: what is written, what is answered, what is counted. Who may write at all: test_fence.py."""

from datetime import timedelta

import psycopg
import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import cancel, settle
from fleet.postgres.database import AsyncConnection
from fleet.task import (
    Cancelled,
    ClaimedTask,
    Errored,
    FailureCode,
    Outcome,
    Released,
    Settlement,
    State,
    Succeeded,
    Verdict,
)
from tests.postgres.steps import MINUTE, NOW, error, make_due, reap_lease, scalar, settle_one, take, whole
from tests.support import claim_some, counters, history, new_lease, row, submit

HOUR = timedelta(hours=1)


async def several(connection: AsyncConnection, lease: Lease, count: int) -> list[ClaimedTask]:
    for _ in range(count):
        await submit(connection)
    return await claim_some(connection, lease, count)


async def test_a_success_keeps_the_result_and_leaves_no_history(connection: AsyncConnection, lease: Lease) -> None:
    task = await take(connection, lease)

    assert await settle_one(connection, task, Succeeded('{"b": [1, null]}')) == (Verdict.SETTLED, State.SUCCEEDED)

    after = await row(connection, task.id)
    assert (after["state"], after["lease_id"], after["result"]) == ("SUCCEEDED", None, {"b": [1, None]})
    assert after["finished_at"] >= after["started_at"]
    assert (after["attempt"], after["failures"], after["losses"]) == (1, 0, 0)
    assert await history(connection, task.id) == []


@pytest.mark.parametrize("outcome", [Succeeded("1"), error(NOW), error(None), Released("r"), Cancelled("c")], ids=str)
async def test_a_settlement_sent_again_is_recognised_and_written_once(
    connection: AsyncConnection, lease: Lease, outcome: Outcome
) -> None:
    task = await take(connection, lease)
    _, state = await settle_one(connection, task, outcome)
    before, counted = await whole(connection, task.id), await counters(connection)

    assert await settle_one(connection, task, outcome) == (Verdict.ALREADY, state)

    assert await whole(connection, task.id) == before
    assert await counters(connection) == counted


@pytest.mark.parametrize("outcome", [Succeeded("1"), error(NOW), Released("r"), Cancelled("c")], ids=str)
async def test_a_locked_row_is_busy_and_does_not_hold_up_the_others(
    connection: AsyncConnection, other: AsyncConnection, lease: Lease, outcome: Outcome
) -> None:
    tasks = await several(connection, lease, 3)
    write = settle.succeed if isinstance(outcome, Succeeded) else settle.give_back

    async with other.transaction():
        await other.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (tasks[1].id,))
        answers = await write(connection, lease, [Settlement(task, outcome) for task in tasks])

    verdicts = [answers[task.id, task.attempt][0] for task in tasks]
    assert verdicts == [Verdict.SETTLED, Verdict.BUSY, Verdict.SETTLED]
    assert (await row(connection, tasks[1].id))["state"] == "RUNNING"
    assert (await settle_one(connection, tasks[1], outcome))[0] is Verdict.SETTLED


async def test_one_batch_gets_every_kind_of_answer(
    connection: AsyncConnection, other: AsyncConnection, lease: Lease
) -> None:
    good, already, busy, fenced = await several(connection, lease, 4)
    await settle_one(connection, already, Succeeded("1"))
    unknown = good._replace(id=uuid7())
    stolen = fenced._replace(attempt=2)

    async with other.transaction():
        await other.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (busy.id,))
        answers = await settle.succeed(
            connection, lease, [Settlement(task, Succeeded("2")) for task in (stolen, unknown, busy, already, good)]
        )

    assert answers[good.id, 1] == (Verdict.SETTLED, State.SUCCEEDED)
    assert (await row(connection, good.id))["result"] == 2
    assert {key: verdict for key, (verdict, _) in answers.items()} == {
        (already.id, 1): Verdict.ALREADY,
        (busy.id, 1): Verdict.BUSY,
        (stolen.id, 2): Verdict.FENCED,
        (unknown.id, 1): Verdict.FENCED,
    }
    assert (await row(connection, already.id))["result"] == 1


@pytest.mark.parametrize("outcome", [Succeeded("1"), error(None), Released("r")], ids=str)
async def test_two_attempts_of_one_task_in_one_batch_are_judged_apart(
    connection: AsyncConnection, lease: Lease, outcome: Outcome
) -> None:
    old = await take(connection, lease)
    await settle_one(connection, old, error(NOW))
    (new,) = await claim_some(connection, lease)
    write = settle.succeed if isinstance(outcome, Succeeded) else settle.give_back

    answers = await write(connection, lease, [Settlement(old, outcome), Settlement(new, outcome)])

    assert answers[new.id, 2][0] is Verdict.SETTLED
    assert answers[old.id, 1][0] is (Verdict.ALREADY if isinstance(outcome, Errored) else Verdict.FENCED)
    assert [entry[0] for entry in await history(connection, old.id)] == [1] + [2] * (not isinstance(outcome, Succeeded))


@pytest.mark.parametrize("result", [r'"\u0000"', "{", "", r'"\ud800"'])
async def test_a_result_that_cannot_be_stored_is_an_error_and_nothing_of_its_batch_is_written(
    connection: AsyncConnection, lease: Lease, result: str
) -> None:
    good, bad = await several(connection, lease, 2)
    before = [await whole(connection, task.id) for task in (good, bad)]

    with pytest.raises(psycopg.DataError):
        await settle.succeed(connection, lease, [Settlement(good, Succeeded("1")), Settlement(bad, Succeeded(result))])

    assert [await whole(connection, task.id) for task in (good, bad)] == before
    assert (await settle_one(connection, good, Succeeded("1")))[0] is Verdict.SETTLED


async def test_an_empty_batch_is_answered_by_nothing(connection: AsyncConnection, lease: Lease) -> None:
    assert await settle.succeed(connection, lease, []) == {}
    assert await settle.give_back(connection, lease, []) == {}
    await settle.record_late(connection, lease, [])
    assert await counters(connection) == {}


async def test_a_release_costs_nothing_keeps_the_place_in_line_and_tells_the_claimers(
    connection: AsyncConnection, lease: Lease
) -> None:
    before = await row(connection, await submit(connection))
    (task,) = await claim_some(connection, lease)

    assert await settle_one(connection, task, Released("drain")) == (Verdict.SETTLED, State.QUEUED)

    after = await row(connection, task.id)
    assert (after["state"], after["lease_id"], after["run_at"]) == ("QUEUED", None, before["run_at"])
    assert (after["failures"], after["losses"], after["failure_reason"], after["finished_at"]) == (0, 0, None, None)
    assert await history(connection, task.id) == [(1, False, "released")]
    assert await scalar(connection, "SELECT generation FROM fleet.queue WHERE name = 'default'") == 1
    assert await counters(connection) == {}


async def test_a_batch_of_releases_moves_each_generation_once_and_other_outcomes_move_none(
    connection: AsyncConnection,
) -> None:
    lease = await new_lease(connection, ttl=MINUTE, queues=["a", "b", "c"])
    tasks = [await take(connection, lease, queue=name) for name in ("a", "a", "b", "c")]
    outcomes: list[Outcome] = [Released("r"), Released("r"), Released("r"), error(NOW)]

    await settle.give_back(connection, lease, [Settlement(*pair) for pair in zip(tasks, outcomes, strict=True)])

    cursor = await connection.execute("SELECT name, generation FROM fleet.queue ORDER BY name")
    assert await cursor.fetchall() == [("a", 1), ("b", 1), ("c", 0)]


async def test_a_retry_waits_for_its_delay_and_lands_ahead(connection: AsyncConnection, lease: Lease) -> None:
    task = await take(connection, lease)
    before = await scalar(connection, "SELECT clock_timestamp()")

    assert await settle_one(connection, task, error(HOUR)) == (Verdict.SETTLED, State.QUEUED)

    after = await row(connection, task.id)
    assert before + HOUR <= after["run_at"] <= await scalar(connection, "SELECT clock_timestamp()") + HOUR
    assert (after["failures"], after["losses"], after["failure_code"], after["failure_reason"]) == (1, 0, None, None)
    detail = await scalar(connection, "SELECT detail FROM fleet.attempt WHERE task_id = %s", task.id)
    assert detail == "boom"


@pytest.mark.parametrize(("failures", "losses", "state"), [
    (0, 0, "QUEUED"), (3, 0, "QUEUED"), (0, 3, "QUEUED"), (2, 1, "QUEUED"),
    (4, 0, "FAILED"), (0, 4, "FAILED"), (2, 2, "FAILED"), (5, 0, "FAILED"),
])  # fmt: skip
async def test_the_budget_counts_this_failure_with_all_earlier_failures_and_losses(
    connection: AsyncConnection, lease: Lease, failures: int, losses: int, state: str
) -> None:
    task_id = await submit(connection, max_attempts=5)
    await connection.execute("UPDATE fleet.task SET failures = %s, losses = %s", (failures, losses))
    (task,) = await claim_some(connection, lease)
    assert (task.failures, task.losses) == (failures, losses)

    assert await settle_one(connection, task, error(NOW)) == (Verdict.SETTLED, State(state))

    after = await row(connection, task_id)
    assert (after["state"], after["failures"], after["losses"]) == (state, failures + 1, losses)


@pytest.mark.parametrize("attempts_max", [1, 2, 3])
async def test_a_task_that_always_fails_is_started_exactly_as_often_as_its_budget_says(
    connection: AsyncConnection, lease: Lease, attempts_max: int
) -> None:
    task_id = await submit(connection, max_attempts=attempts_max)
    starts = 0
    while tasks := await claim_some(connection, lease):
        starts += 1
        assert tasks[0].attempt == starts
        await settle_one(connection, tasks[0], error(NOW))

    assert starts == attempts_max
    after = await row(connection, task_id)
    assert (after["state"], after["failure_code"], after["failure_reason"]) == ("FAILED", "handler_error", "boom")


@pytest.mark.parametrize("code", FailureCode)
async def test_a_final_error_fails_at_once_with_its_code_and_reason(
    connection: AsyncConnection, lease: Lease, code: FailureCode
) -> None:
    task = await take(connection, lease, max_attempts=100)

    assert await settle_one(connection, task, Errored(code, "why", None)) == (Verdict.SETTLED, State.FAILED)

    after = await row(connection, task.id)
    assert (after["state"], after["failure_code"], after["failure_reason"]) == ("FAILED", code, "why")
    assert (after["lease_id"], after["failures"], after["resolved_at"]) == (None, 1, None)
    assert after["finished_at"] is not None
    assert await counters(connection) == {("dead_letters", "default", code.value): 1}


@pytest.mark.parametrize(("outcome", "state"), [
    (error(NOW), "CANCELLED"), (Released("r"), "CANCELLED"), (Cancelled("c"), "CANCELLED"),
    (error(None), "FAILED"), (Succeeded("1"), "SUCCEEDED"),
], ids=str)  # fmt: skip
async def test_a_request_to_cancel_wins_over_waiting_and_over_nothing_else(
    connection: AsyncConnection, lease: Lease, outcome: Outcome, state: str
) -> None:
    task = await take(connection, lease)
    await cancel.cancel(connection, [task.id], "operator")

    assert await settle_one(connection, task, outcome) == (Verdict.SETTLED, State(state))

    after = await row(connection, task.id)
    assert after["state"] == state
    assert after["finished_at"] is not None
    assert await scalar(connection, "SELECT generation FROM fleet.queue WHERE name = 'default'") == 0


async def test_an_error_that_spends_the_budget_is_a_failure_even_if_a_cancel_was_asked(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease, max_attempts=1)
    await cancel.cancel(connection, [task.id], "operator")
    assert await settle_one(connection, task, error(NOW)) == (Verdict.SETTLED, State.FAILED)


async def test_a_handler_may_end_cancelled_without_a_request(connection: AsyncConnection, lease: Lease) -> None:
    task = await take(connection, lease)
    assert await settle_one(connection, task, Cancelled("c")) == (Verdict.SETTLED, State.CANCELLED)
    assert await history(connection, task.id) == [(1, False, "cancelled")]


async def test_dead_letters_are_counted_by_queue_and_code_in_the_account_of_their_writer(
    connection: AsyncConnection, rival: Lease
) -> None:
    lease = await new_lease(connection, ttl=MINUTE, queues=["a", "b"])
    ends = [
        ("a", FailureCode.TIMEOUT),
        ("a", FailureCode.TIMEOUT),
        ("a", FailureCode.INTERRUPTED),
        ("b", FailureCode.TIMEOUT),
    ]
    for turn in range(2):
        settlements = [
            Settlement(await take(connection, lease, queue=name), Errored(code, f"turn {turn}", None))
            for name, code in ends
        ]
        settlements.append(Settlement(await take(connection, lease, queue="b"), error(NOW)))
        await settle.give_back(connection, lease, settlements)

    assert await counters(connection) == {
        ("dead_letters", "a", "timeout"): 4,
        ("dead_letters", "a", "interrupted"): 2,
        ("dead_letters", "b", "timeout"): 2,
    }
    assert await scalar(connection, "SELECT array_agg(DISTINCT writer) FROM fleet.counter") == [lease.id]


async def test_late_reports_of_two_attempts_are_each_kept_and_counted_once(
    connection: AsyncConnection, lease: Lease
) -> None:
    first = await take(connection, lease)
    await settle_one(connection, first, Released("r"))
    (second,) = await claim_some(connection, lease)
    await reap_lease(connection, lease)
    another = first._replace(id=uuid7(), queue="b")
    late = [Settlement(task, Succeeded("1")) for task in (first, second, another, second)]

    for _ in range(2):
        await settle.record_late(connection, lease, late)

    assert await history(connection, first.id) == [
        (1, False, "released"), (1, True, "succeeded"), (2, False, "lost"), (2, True, "succeeded"),
    ]  # fmt: skip
    counted = await counters(connection)
    assert counted["fence_rejections", "default", ""] == 2
    assert counted["fence_rejections", "b", ""] == 1


async def test_a_thousand_settlements_are_one_statement_each_way(connection: AsyncConnection, lease: Lease) -> None:
    tasks = await several_fast(connection, lease, 1000)
    answers = await settle.give_back(connection, lease, [Settlement(task, error(NOW)) for task in tasks])
    assert set(answers.values()) == {(Verdict.SETTLED, State.QUEUED)}

    await make_due(connection, *(task.id for task in tasks))
    again = await claim_some(connection, lease, 1000)
    answers = await settle.succeed(connection, lease, [Settlement(task, Succeeded("1")) for task in again])
    assert answers == {}
    assert await scalar(connection, "SELECT count(*) FROM fleet.task WHERE state = 'SUCCEEDED' AND attempt = 2") == 1000


async def several_fast(connection: AsyncConnection, lease: Lease, count: int) -> list[ClaimedTask]:
    await connection.execute(
        "INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses)"
        " SELECT gen_random_uuid(), 'default', 'work', 5, 3 FROM generate_series(1, %s)",
        (count,),
    )
    return await claim_some(connection, lease, count)
