"""What is forgotten, and what never is."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.lease import Lease
from fleet.postgres import prune, queue, settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Cancelled, ClaimedTask, Released, Settlement, Succeeded
from tests.postgres.steps import MINUTE, end_lease, error, reap_lease, scalar, settle_one, take, waits
from tests.support import counters, execute, expire_lease, history, new_lease, row, submit

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
WEEK = timedelta(days=7)
HOUR = timedelta(hours=1)
ME = uuid7()


def id_of(milliseconds: int, tail: int = 0) -> UUID:
    """The smallest id (plus `tail`) that can have been made at a moment."""
    return UUID(int=(milliseconds << 80) + tail)


OLD = NOW_MS - 8 * DAY_MS


async def task_of(connection: AsyncConnection, number: int, age_ms: int = 8 * DAY_MS, **columns: Any) -> UUID:
    """A task made `age_ms` before NOW_MS, SUCCEEDED eight days ago unless told otherwise."""
    values = {"state": "SUCCEEDED", "finished_days": 8.0, "lease_id": None, "resolved": False} | columns
    task_id = id_of(NOW_MS - age_ms, number)
    await execute(
        connection,
        """
        INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses, state, lease_id, finished_at, resolved_at)
        VALUES (:id, 'default', 'work', 1, 1, :state, :lease_id,
                clock_timestamp() - :finished_days * interval '1 day', CASE WHEN :resolved THEN clock_timestamp() END)
        """,
        id=task_id,
        **values,
    )
    return task_id


async def prune_now(connection: AsyncConnection, retention: timedelta = WEEK) -> int:
    return await prune.prune(connection, ME, NOW_MS, retention)


async def exists(connection: AsyncConnection, task_id: UUID) -> bool:
    return bool(await execute(connection, "SELECT 1 FROM fleet.task WHERE id = :id", id=task_id))


@pytest.mark.parametrize(("columns", "pruned"), [
    ({}, True),
    ({"state": "CANCELLED"}, True),
    ({"state": "FAILED", "resolved": True}, True),
    ({"state": "FAILED"}, False),
    ({"state": "QUEUED", "finished_days": None}, False),
    ({"state": "RUNNING", "finished_days": None, "lease_id": UUID(int=7)}, False),
    ({"finished_days": 6.9}, False),
    ({"finished_days": 7.1}, True),
    ({"state": "FAILED", "resolved": True, "finished_days": 6.9}, False),
], ids=str)  # fmt: skip
async def test_only_old_ends_that_nobody_needs_to_look_at_are_pruned(
    connection: AsyncConnection, columns: dict[str, Any], pruned: bool
) -> None:
    task_id = await task_of(connection, 1, **columns)
    assert await prune_now(connection) == int(pruned)
    assert await exists(connection, task_id) is not pruned


@pytest.mark.parametrize(("age_ms", "tail", "pruned"), [
    (7 * DAY_MS, 0, False), (7 * DAY_MS + 1, 0, True), (7 * DAY_MS + 1, (1 << 80) - 1, True), (7 * DAY_MS - 1, 0, False),
])  # fmt: skip
async def test_an_id_as_young_as_the_retention_is_not_looked_at(
    connection: AsyncConnection, age_ms: int, tail: int, pruned: bool
) -> None:
    task_id = await task_of(connection, tail, age_ms)
    assert await prune_now(connection) == int(pruned)
    assert await exists(connection, task_id) is not pruned


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
async def test_what_must_stay_is_stepped_over(
    connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(prune, "PRUNE_BATCH", batch)
    kept = [await task_of(connection, number, state="FAILED") for number in (1, 2, 3, 6)]
    gone = [await task_of(connection, number) for number in (4, 5, 7)]

    assert await prune_now(connection) == 3

    assert [await exists(connection, task_id) for task_id in kept + gone] == [True] * 4 + [False] * 3
    assert (await counters(connection))["purged", "default", ""] == 3


async def test_the_history_of_a_task_goes_with_it_and_no_other(connection: AsyncConnection, lease: Lease) -> None:
    gone, kept = await task_of(connection, 1), await task_of(connection, 2, state="FAILED")
    for task_id in (gone, kept):
        await execute(
            connection,
            "INSERT INTO fleet.attempt (task_id, attempt, lease_id, outcome)"
            " SELECT :id, number, :lease, 'error' FROM generate_series(1, 3) AS number",
            id=task_id,
            lease=lease.id,
        )
    await prune_now(connection)
    assert await history(connection, gone) == []
    assert len(await history(connection, kept)) == 3


async def test_two_pruners_at_once_delete_and_count_each_task_once(
    connection: AsyncConnection, other: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "PRUNE_BATCH", 20)
    for number in range(200):
        await task_of(connection, number)
    assert sum(await asyncio.gather(prune_now(connection), prune_now(other))) == 200
    assert (await counters(connection))["purged", "default", ""] == 200


@pytest.mark.parametrize(("age_days", "retention", "task_exists", "pruned"), [
    (8, WEEK, False, True), (8, WEEK, True, False), (6, WEEK, False, False), (6, HOUR, False, False),
    (8, HOUR, False, True), (8, timedelta(days=30), False, False), (31, timedelta(days=30), False, True),
    (400, HOUR, True, False),
])  # fmt: skip
async def test_a_key_is_kept_at_least_a_week_and_as_long_as_its_task(
    connection: AsyncConnection, age_days: int, retention: timedelta, task_exists: bool, pruned: bool
) -> None:
    task_id = await submit(connection, key="key")
    await execute(
        connection, "UPDATE fleet.submission SET created_at = now() - :days * interval '1 day'", days=age_days
    )
    if not task_exists:
        await execute(connection, "DELETE FROM fleet.task WHERE id = :id", id=task_id)

    await prune_now(connection, retention)

    assert await scalar(connection, "SELECT count(*) FROM fleet.submission") == int(not pruned)


@pytest.mark.parametrize(("cleared_days", "pruned"), [(None, False), (6.9, False), (7.1, True)])
async def test_a_lease_is_kept_until_it_was_cleared_long_ago(
    connection: AsyncConnection, lease: Lease, cleared_days: float | None, pruned: bool
) -> None:
    await end_lease(connection, lease)
    await execute(
        connection, "UPDATE fleet.lease SET cleared_at = now() - :days::float8 * interval '1 day', granted_at = '-infinity'",
        days=cleared_days,
    )  # fmt: skip
    await prune_now(connection)
    assert await scalar(connection, "SELECT count(*) FROM fleet.lease") == int(not pruned)


async def writers(connection: AsyncConnection) -> set[UUID]:
    return set(await scalar(connection, "SELECT coalesce(array_agg(writer), '{}') FROM fleet.counter"))


async def count_some(connection: AsyncConnection, lease: Lease) -> ClaimedTask:
    """One dead letter and one late report in the lease's account."""
    task = await take(connection, lease)
    await settle_one(connection, task, error(None))
    late = task._replace(id=uuid7())
    await settle.record_late(connection, lease, [Settlement(late, Succeeded("1"))])
    return late


async def test_the_accounts_of_ended_writers_are_folded_without_losing_a_count(connection: AsyncConnection) -> None:
    live, just_ended, long_ended, forgotten = [await new_lease(connection, ttl=MINUTE) for _ in range(4)]
    for lease in (live, just_ended, long_ended, forgotten, forgotten):
        await count_some(connection, lease)
    for lease in (just_ended, long_ended):
        await reap_lease(connection, lease)
    await execute(
        connection, "UPDATE fleet.lease SET cleared_at = now() - interval '61 minutes' WHERE id = :id", id=long_ended.id
    )
    await execute(connection, "DELETE FROM fleet.lease WHERE id = :id", id=forgotten.id)
    before = await counters(connection)

    for _ in range(2):
        await prune_now(connection)
        assert await counters(connection) == before
        assert await writers(connection) == {live.id, just_ended.id, prune.NOBODY}

    late = (await count_some(connection, live))._replace(id=uuid7(), lease=long_ended)
    await settle.record_late(connection, long_ended, [Settlement(late, Succeeded("1"))])
    before = await counters(connection)
    await prune_now(connection)
    assert await counters(connection) == before
    assert before["fence_rejections", "default", ""] == 7
    assert await writers(connection) == {live.id, just_ended.id, prune.NOBODY}


@pytest.mark.parametrize("fold_first", [True, False])
async def test_a_count_that_comes_during_the_folding_is_not_lost(
    connection: AsyncConnection, other: AsyncConnection, database_url: str, fold_first: bool
) -> None:
    lease = await new_lease(connection, ttl=MINUTE)
    late = await count_some(connection, lease)
    await execute(connection, "DELETE FROM fleet.lease")
    again = [Settlement(late._replace(id=uuid7()), Succeeded("1"))]

    async def fold(on: AsyncConnection) -> None:
        await prune.prune(on, ME, 0, WEEK)

    async def record(on: AsyncConnection) -> None:
        await settle.record_late(on, lease, again)

    first, second = (fold, record) if fold_first else (record, fold)

    async with connection.transaction():
        await first(connection)
        running = asyncio.ensure_future(second(other))
        waited = await waits(connection, running, other)
    await running

    assert waited is fold_first
    assert (await counters(connection))["fence_rejections", "default", ""] == 2
    await prune_now(connection)
    assert (await counters(connection))["fence_rejections", "default", ""] == 2
    assert await writers(connection) == {prune.NOBODY}


async def test_a_whole_life_is_pruned_to_nothing_but_its_counts(connection: AsyncConnection, lease: Lease) -> None:
    for outcome in (Succeeded("1"), Cancelled("c"), error(None)):
        await settle_one(connection, await take(connection, lease), outcome)
    released = await take(connection, lease)
    await settle_one(connection, released, Released("r"))
    await execute(connection, "UPDATE fleet.task SET finished_at = finished_at - interval '8 days'")
    now_ms = round(1000 * float(await scalar(connection, "SELECT extract(epoch FROM now())"))) + 8 * DAY_MS

    assert await prune.prune(connection, ME, now_ms, WEEK) == 2

    left = await execute(connection, "SELECT state FROM fleet.task ORDER BY state")
    assert left == [("FAILED",), ("QUEUED",)]
    assert (await row(connection, released.id))["state"] == "QUEUED"
    assert await counters(connection) == {("dead_letters", "default", "handler_error"): 1, ("purged", "default", ""): 2}


async def rule(connection: AsyncConnection, retention: timedelta | None, name: str = "default") -> None:
    await execute(connection, "INSERT INTO fleet.queue (name) VALUES (:name) ON CONFLICT DO NOTHING", name=name)
    assert await queue.retain(connection, name, retention, "ann") is True


@pytest.mark.parametrize(("kept_days", "finished_days", "pruned"), [
    (30, 29.9, False), (30, 30.1, True), (2, 2.1, True), (2, 1.9, False), (8, 7.5, False),
])  # fmt: skip
async def test_a_queue_with_a_rule_of_its_own_keeps_for_that_long(
    connection: AsyncConnection, kept_days: int, finished_days: float, pruned: bool
) -> None:
    await rule(connection, timedelta(days=kept_days))
    task_id = await task_of(connection, 1, age_ms=40 * DAY_MS, finished_days=finished_days)
    await prune_now(connection)
    assert await exists(connection, task_id) is not pruned


async def test_a_rule_is_for_its_queue_alone_and_reaches_younger_ids_than_the_default(
    connection: AsyncConnection,
) -> None:
    await rule(connection, timedelta(days=1), name="brief")
    brief, default = [await task_of(connection, number, age_ms=2 * DAY_MS, finished_days=1.5) for number in (1, 2)]
    long = await task_of(connection, 3)
    await execute(connection, "UPDATE fleet.task SET queue = 'brief' WHERE id = :id", id=brief)
    await rule(connection, timedelta(days=365), name="long")
    await execute(connection, "UPDATE fleet.task SET queue = 'long' WHERE id = :id", id=long)
    assert await prune_now(connection) == 1
    assert [await exists(connection, task_id) for task_id in (brief, default, long)] == [False, True, True]


async def test_a_dead_letter_outlives_every_rule_until_it_is_judged(connection: AsyncConnection) -> None:
    await rule(connection, HOUR)
    task_id = await task_of(connection, 1, state="FAILED")
    assert await prune_now(connection) == 0
    await execute(connection, "UPDATE fleet.task SET resolved_at = clock_timestamp() WHERE id = :id", id=task_id)
    assert await prune_now(connection) == 1


async def test_the_key_of_a_task_that_is_kept_for_long_is_kept_with_it(connection: AsyncConnection) -> None:
    task_id = await submit(connection, key="key")
    await rule(connection, timedelta(days=365))
    await execute(connection, "UPDATE fleet.submission SET created_at = now() - interval '40 days'")
    await execute(
        connection,
        "UPDATE fleet.task SET state = 'SUCCEEDED', finished_at = now() - interval '40 days' WHERE id = :id",
        id=task_id,
    )
    now_ms = round(1000 * float(await scalar(connection, "SELECT extract(epoch FROM now())"))) + 400 * DAY_MS
    await prune.prune(connection, ME, now_ms, HOUR)
    assert await scalar(connection, "SELECT count(*) FROM fleet.submission") == 1
    await queue.retain(connection, "default", None, "ann")
    await prune.prune(connection, ME, now_ms, HOUR)
    assert await scalar(connection, "SELECT count(*) FROM fleet.submission") == 0


# Each statement writes how many rows it has deleted from which table, in its own transaction.
WATCH = """
CREATE TABLE deleted (at bigint, what text, count bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO deleted SELECT txid_current(), TG_TABLE_NAME, count(*) FROM gone;
  RETURN NULL;
END $$;
"""
WATCHED = """
CREATE TRIGGER note AFTER DELETE ON fleet.{table} REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION note();
"""


async def test_no_statement_deletes_more_than_a_batch_and_all_of_them_delete_everything(
    connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "PRUNE_BATCH", 10)
    for number in range(1, 36):
        attempts = 4 if number < 12 else 1
        task_id = await task_of(connection, number)
        await execute(
            connection, "UPDATE fleet.task SET attempt = :attempts WHERE id = :id", attempts=attempts, id=task_id
        )
        await execute(
            connection,
            "INSERT INTO fleet.attempt (task_id, attempt, lease_id, outcome)"
            " SELECT :id, number, gen_random_uuid(), 'error' FROM generate_series(1, :attempts::int) AS number",
            id=task_id, attempts=attempts,
        )  # fmt: skip
        await execute(
            connection,
            "INSERT INTO fleet.submission (scope, key, task_id, fingerprint, created_at) VALUES ('', :key, :id, '', :at)",
            key=str(number), id=task_id, at=datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
        )  # fmt: skip
        lease = await new_lease(connection)
        await end_lease(connection, lease)
    await execute(connection, "UPDATE fleet.lease SET cleared_at = now() - interval '8 days'")
    await connection.execute(WATCH.encode())
    for table in ("task", "attempt", "submission", "lease"):
        await connection.execute(WATCHED.format(table=table).encode())

    assert await prune_now(connection) == 35

    most = dict(await execute(connection, "SELECT what, max(count) FROM deleted GROUP BY what"))
    # a batch of tasks ends with the one that fills its number of attempts
    assert most["task"] <= 10
    assert most["attempt"] <= 10 + 4
    assert (most["submission"], most["lease"]) == (10, 10)
    for table in ("task", "attempt", "submission", "lease"):
        assert await scalar(connection, f"SELECT count(*) FROM fleet.{table}") == 0


async def test_a_pass_that_was_interrupted_half_way_is_gone_on_with(
    connection: AsyncConnection, other: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "PRUNE_BATCH", 10)
    for number in range(1, 41):
        await task_of(connection, number)
    rests = 0

    async def die(seconds: float) -> None:
        nonlocal rests
        rests += 1
        if rests == 2:
            raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        await prune.prune(other, ME, NOW_MS, WEEK, die)
    assert await scalar(connection, "SELECT count(*) FROM fleet.task") == 20
    assert await prune_now(connection) == 20
    assert (await counters(connection))["purged", "default", ""] == 40


async def test_the_worker_whose_lease_is_the_oldest_prunes_and_no_other(connection: AsyncConnection) -> None:
    leases = [await new_lease(connection, ttl=MINUTE) for _ in range(3)]

    async def turns() -> list[bool]:
        return [await prune.my_turn(connection, lease.id) for lease in leases]

    assert await turns() == [True, False, False]
    await expire_lease(connection, leases[0])
    assert await turns() == [False, True, False]
    await execute(connection, "UPDATE fleet.lease SET state = 'DRAINING' WHERE id = :id", id=leases[1].id)
    assert await turns() == [False, False, True]
    await execute(connection, "DELETE FROM fleet.lease")
    assert await turns() == [False, False, False]
