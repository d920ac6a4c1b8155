"""Pause and resume."""

from datetime import timedelta
from typing import Any

import pytest

from fleet.errors import InvalidArguments, NotFound
from fleet.lease import Lease
from fleet.postgres import queue
from fleet.postgres.database import AsyncConnection
from fleet.task import Succeeded, Verdict
from tests.postgres.steps import settle_one, take
from tests.support import claim_some, execute, submit


async def rows(connection: AsyncConnection) -> list[tuple[Any, ...]]:
    return await execute(
        connection, "SELECT name, paused, generation FROM fleet.queue WHERE name IN ('default', 'b') ORDER BY name"
    )


async def audited(connection: AsyncConnection) -> list[tuple[Any, ...]]:
    return await execute(connection, "SELECT actor, action, subject FROM fleet.audit ORDER BY id")


async def test_a_queue_is_paused_once_and_resumed_once(connection: AsyncConnection, lease: Lease) -> None:
    assert not await queue.resume(connection, "default", "ann")
    assert await queue.pause(connection, "default", "ann")
    assert not await queue.pause(connection, "default", "bob")
    assert await rows(connection) == [("default", True, 0)]
    assert await queue.resume(connection, "default", "cid")
    assert not await queue.resume(connection, "default", "dan")
    assert await rows(connection) == [("default", False, 1)]
    assert await audited(connection) == [("ann", "pause", "default"), ("cid", "resume", "default")]


async def test_a_name_that_no_queue_has_is_refused_with_those_there_are(
    connection: AsyncConnection, lease: Lease
) -> None:
    await submit(connection, queue="waited")
    for verb in (queue.pause, queue.resume):
        with pytest.raises(NotFound, match=r"there is no queue 'b'; there are: default, .*, waited$"):
            await verb(connection, "b", "ann")
    assert await rows(connection) == [("default", False, 0)]
    assert await audited(connection) == []


async def test_no_more_names_are_told_than_a_person_reads(connection: AsyncConnection) -> None:
    with pytest.raises(NotFound, match=r"there are: none yet$"):
        await queue.pause(connection, "b", "ann")
    await connection.execute("INSERT INTO fleet.queue (name) SELECT 'q' || n FROM generate_series(100, 130) AS n")
    with pytest.raises(NotFound, match=r"there are: q100, .*, q119, \.\.\.$"):
        await queue.pause(connection, "b", "ann")


async def test_a_queue_that_only_waiting_tasks_know_of_can_be_paused(connection: AsyncConnection) -> None:
    await submit(connection, queue="b")
    assert not await queue.resume(connection, "b", "ann")
    assert await queue.pause(connection, "b", "ann")
    assert not await queue.pause(connection, "b", "ann")
    assert await rows(connection) == [("b", True, 0)]


async def test_pausing_one_queue_leaves_the_others_alone(connection: AsyncConnection, lease: Lease) -> None:
    await submit(connection, queue="b")
    await queue.pause(connection, "b", "ann")
    assert await rows(connection) == [("b", True, 0), ("default", False, 0)]


async def test_what_runs_when_its_queue_is_paused_goes_on_and_ends(connection: AsyncConnection, lease: Lease) -> None:
    task = await take(connection, lease)
    await queue.pause(connection, "default", "ann")
    assert (await settle_one(connection, task, Succeeded("1")))[0] is Verdict.SETTLED


async def test_a_resumed_queue_wakes_its_workers(
    connection: AsyncConnection, other: AsyncConnection, lease: Lease
) -> None:
    await queue.pause(connection, "default", "ann")
    task_id = await submit(connection)
    await other.execute("LISTEN fleet")
    await queue.resume(connection, "default", "ann")
    assert [note.payload async for note in other.notifies(timeout=30, stop_after=1)] == ["default"]
    assert [task.id for task in await claim_some(connection, lease)] == [task_id]


async def test_a_queue_keeps_for_as_long_as_was_said_and_who_said_it_is_on_record(connection: AsyncConnection) -> None:
    await submit(connection, queue="b")
    month = timedelta(days=30)
    assert await queue.retain(connection, "b", month, "ann")
    assert not await queue.retain(connection, "b", month, "bob")
    assert await execute(connection, "SELECT name, retention, paused FROM fleet.queue") == [("b", month, False)]
    assert await queue.retain(connection, "b", None, "cid")
    assert not await queue.retain(connection, "b", None, "dan")
    assert await execute(connection, "SELECT name, retention FROM fleet.queue") == [("b", None)]
    assert await execute(connection, "SELECT actor, action, subject, detail FROM fleet.audit ORDER BY id") == [
        ("ann", "retain", "b", "30 days"), ("cid", "retain", "b", "default"),
    ]  # fmt: skip
    with pytest.raises(NotFound, match="there is no queue 'c'; there are: b"):
        await queue.retain(connection, "c", month, "ann")


@pytest.mark.parametrize(("retention", "fits"), [
    (timedelta(minutes=60), True), (timedelta(minutes=59), False), (timedelta(days=36_500), True),
    (timedelta(days=36_501), False), (timedelta(days=-1), False),
])  # fmt: skip
async def test_a_queue_keeps_for_an_hour_to_a_hundred_years(
    connection: AsyncConnection, retention: timedelta, fits: bool
) -> None:
    await submit(connection, queue="b")
    if fits:
        assert await queue.retain(connection, "b", retention, "ann")
    else:
        with pytest.raises(InvalidArguments, match="1 hour to 36500 days"):
            await queue.retain(connection, "b", retention, "ann")
