"""Pause and resume."""

from typing import Any

import pytest

from fleet.errors import NotFound
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
