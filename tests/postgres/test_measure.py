"""What the fleet's metrics say, figure by figure; how much is read for them is judged in test_plans.py."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.metrics.fleet import CACHE_SECONDS, REASONS, FleetMetrics
from fleet.postgres import dead_letter, expire, prune, settle
from fleet.postgres.database import AsyncConnection, Connection, Database, run
from fleet.task import FailureCode, Settlement, Succeeded
from tests.postgres.steps import error, reap_lease, settle_one, take
from tests.support import claim_some, expire_lease, new_lease, submit

Told = Callable[..., float | None]
HOUR = timedelta(hours=1)


@pytest.fixture
def told(database: Database) -> Told:
    """The value of one series, asked of the database now."""

    def ask(name: str, **labels: str) -> float | None:
        return FleetMetrics(database).registry.get_sample_value(f"fleet_{name}", labels)

    return ask


async def test_all_that_is_known_is_there_with_zero(connection: AsyncConnection, told: Told) -> None:
    await new_lease(connection, queues=["a", "b"])
    assert told("up") == 1
    assert told("lease_expirations_total") == 0
    for queue in ("a", "b"):
        assert {told("queue_tasks", queue=queue, state=state) for state in ("ready", "delayed", "running")} == {0}
        assert {told("dead_letters", queue=queue, reason=reason) for reason in REASONS} == {0}
        assert {told("dead_letters_total", queue=queue, reason=reason) for reason in REASONS} == {0}
        assert told("queue_oldest_ready_age_seconds", queue=queue) == 0
        assert told("reclaims_total", queue=queue) == told("fence_rejections_total", queue=queue) == 0
    assert set(REASONS) == {code.value for code in FailureCode}


async def test_tasks_are_told_by_queue_and_by_what_they_wait_for(connection: AsyncConnection, told: Told) -> None:
    lease = await new_lease(connection)
    await take(connection, lease)
    for priority in (0, 9):
        await submit(connection, priority=priority)
    for _ in range(3):
        await submit(connection, delay=HOUR)
    await submit(connection, queue="of nobody")
    tasks = {state: told("queue_tasks", queue="default", state=state) for state in ("ready", "delayed", "running")}
    assert tasks == {"ready": 2, "delayed": 3, "running": 1}
    assert told("queue_tasks", queue="of nobody", state="ready") == 1
    assert told("queue_workers", queue="default") == 1
    assert told("queue_workers", queue="of nobody") == 0


async def test_the_oldest_ready_task_counts_whatever_its_priority(connection: AsyncConnection, told: Told) -> None:
    await submit(connection, priority=0)
    old = await submit(connection, priority=9)
    await connection.execute("UPDATE fleet.task SET run_at = run_at - interval '1 hour' WHERE id = %s", (old,))
    await submit(connection, delay=HOUR)
    age = told("queue_oldest_ready_age_seconds", queue="default")
    assert age is not None
    assert 3600 <= age < 3700


async def test_a_count_says_at_least_where_it_equals_its_limit(connection: AsyncConnection, told: Told) -> None:
    await connection.execute(
        "INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses)"
        " SELECT gen_random_uuid(), 'full', 'work', 5, 3 FROM generate_series(1, 10001)"
    )
    assert told("queue_tasks", queue="full", state="ready") == told("queue_count_limit") == 10_000
    await connection.execute("INSERT INTO fleet.queue (name) SELECT 'q' || n FROM generate_series(1, 1000) AS n")
    assert told("queues_omitted") == 1
    assert told("queue_tasks", queue="full", state="ready") == told("queue_count_limit") == 200
    assert told("queue_tasks", queue="q999", state="ready") is None


async def test_a_judged_dead_letter_leaves_the_gauge_and_not_the_counter(
    connection: AsyncConnection, told: Told
) -> None:
    lease = await new_lease(connection)
    tasks = [await take(connection, lease) for _ in range(3)]
    for task in tasks:
        await settle_one(connection, task, error(None))
    labels = {"queue": "default", "reason": "handler_error"}
    assert told("dead_letters", **labels) == told("dead_letters_total", **labels) == 3
    await dead_letter.discard(connection, {tasks[0].id: 1}, "ann")
    await dead_letter.requeue(connection, {tasks[1].id: 1}, "ann")
    assert (told("dead_letters", **labels), told("dead_letters_total", **labels)) == (1, 3)


async def test_what_ended_in_a_queue_that_nobody_serves_is_told(connection: AsyncConnection, told: Told) -> None:
    task = await submit(connection, queue="of nobody")
    await connection.execute("UPDATE fleet.task SET expires_at = clock_timestamp() WHERE id = %s", (task,))
    assert await expire.expire(connection, uuid7()) == 1
    assert told("dead_letters", queue="of nobody", reason="expired") == 1
    assert told("dead_letters_total", queue="of nobody", reason="expired") == 1


async def test_workers_are_those_with_a_good_lease_and_the_others_are_overdue(
    connection: AsyncConnection, told: Told
) -> None:
    leases = [await new_lease(connection) for _ in range(4)]
    await expire_lease(connection, leases[0])
    await connection.execute("UPDATE fleet.lease SET state = 'DRAINING' WHERE id = %s", (leases[1].id,))
    assert (told("workers", state="LIVE"), told("workers", state="DRAINING"), told("leases_overdue")) == (2, 1, 1)
    assert told("queue_workers", queue="default") == 2
    await reap_lease(connection, leases[0])
    assert (told("leases_overdue"), told("lease_expirations_total")) == (0, 1)


async def test_each_counter_says_what_was_done_and_a_fold_changes_none(
    connection: AsyncConnection, other: AsyncConnection, told: Told
) -> None:
    lease = await new_lease(connection)
    once = await take(connection, lease, idempotent=False)
    await take(connection, lease)
    await reap_lease(connection, lease)
    await settle.record_late(connection, lease, [Settlement(once, Succeeded("1"))])
    expected = (1, 1, 1, 1)

    def counters() -> tuple[Any, ...]:
        return (
            told("lease_expirations_total"),
            told("dead_letters_total", queue="default", reason="lease_expired"),
            told("reclaims_total", queue="default"),
            told("fence_rejections_total", queue="default"),
        )

    assert counters() == expected
    await connection.execute("UPDATE fleet.lease SET cleared_at = clock_timestamp() - interval '1 day'")
    async with other.transaction():
        await run(other, prune.FOLD, nobody=prune.NOBODY, batch=prune.PRUNE_BATCH)
        assert counters() == expected
    writers = await (await connection.execute("SELECT DISTINCT writer FROM fleet.counter")).fetchall()
    assert writers == [(prune.NOBODY,)]
    assert counters() == expected


async def test_an_open_transaction_is_told_with_its_age(
    connection: AsyncConnection, other: AsyncConnection, told: Told
) -> None:
    assert told("oldest_transaction_age_seconds") == 0
    async with other.transaction():
        await other.execute("SELECT pg_sleep(0.05)")
        age = told("oldest_transaction_age_seconds")
        assert age is not None
        assert age >= 0.05
    paused = {"queue": "default"}
    await new_lease(connection)
    assert told("queue_paused", **paused) == 0
    await connection.execute("UPDATE fleet.queue SET paused = true")
    assert told("queue_paused", **paused) == 1


class Counted(Database):
    """A database that counts how often somebody connects."""

    connects = 0

    def connect_sync(self, role: str) -> Connection:
        self.connects += 1
        return super().connect_sync(role)


async def test_the_database_is_asked_once_in_a_few_seconds(connection: AsyncConnection, database_url: str) -> None:
    database, now = Counted(database_url, Settings()), 100.0
    registry = FleetMetrics(database, lambda: now).registry
    assert registry.get_sample_value("fleet_workers", {"state": "LIVE"}) == 0
    await new_lease(connection)
    now += CACHE_SECONDS - 0.001
    assert registry.get_sample_value("fleet_workers", {"state": "LIVE"}) == 0
    assert database.connects == 1
    now += 0.001
    assert registry.get_sample_value("fleet_workers", {"state": "LIVE"}) == 1
    assert database.connects == 2


async def test_many_scrapes_at_once_are_one_question(database_url: str) -> None:
    database = Counted(database_url, Settings())
    registry = FleetMetrics(database).registry
    together, answers = threading.Barrier(8), []

    def scrape() -> None:
        together.wait()
        answers.append(registry.get_sample_value("fleet_up"))

    with ExitStack() as stack:
        for _ in range(8):
            thread = threading.Thread(target=scrape)
            thread.start()
            stack.callback(thread.join)
    assert answers == [1] * 8
    assert database.connects == 1


async def test_without_an_answer_nothing_is_told_but_that(connection: AsyncConnection, database_url: str) -> None:
    now = 100.0
    database = Database(database_url, Settings())
    metrics = FleetMetrics(database, lambda: now)
    assert len(list(metrics.registry.collect())) > 10
    metrics._database = Database("postgresql://127.0.0.1:1/none", Settings())
    now += CACHE_SECONDS
    (family,) = metrics.registry.collect()
    assert [(sample.name, sample.value) for sample in family.samples] == [("fleet_up", 0)]
    assert await claim_some(connection, await new_lease(connection)) == []
