"""What an idle worker is told without leaving a trace."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from fleet.lease import Lease
from fleet.postgres import cancel, claim, queue
from fleet.postgres.database import AsyncConnection
from fleet.task import PRIORITY_DEFAULT, Released
from tests.postgres.steps import MINUTE, at_the_same_moment, lanes_of, scalar, settle_one, take
from tests.support import row, submit

PAST = datetime(2026, 1, 1, tzinfo=UTC)


async def ready(connection: AsyncConnection, position: claim.Position = claim.HEAD) -> bool:
    return (await claim.peek(connection, lanes_of("default", position=position), ["work"])).ready


async def test_a_peek_sees_what_a_claim_would_take(connection: AsyncConnection, lease: Lease) -> None:
    assert not await ready(connection)
    await submit(connection)
    assert await ready(connection)
    assert not await ready(connection, claim.Position("infinity", UUID(int=0)))


async def test_a_peek_does_not_see_what_a_claim_would_not_take(connection: AsyncConnection, lease: Lease) -> None:
    await take(connection, lease)
    await submit(connection, name="foreign")
    await submit(connection, queue="elsewhere")
    await submit(connection, delay=timedelta(hours=1))
    await cancel.cancel(connection, [await submit(connection)], "operator")
    expired = await submit(connection)
    await connection.execute("UPDATE fleet.task SET expires_at = clock_timestamp() WHERE id = %s", (expired,))

    assert not await ready(connection)


async def test_a_peek_sees_nothing_in_a_paused_queue(connection: AsyncConnection, lease: Lease) -> None:
    await submit(connection)
    await submit(connection, delay=timedelta(hours=1))
    await queue.pause(connection, "default", "operator")

    peeked = await claim.peek(connection, lanes_of("default"), ["work"])
    assert (peeked.ready, peeked.next_due_seconds) == (False, None)


@pytest.mark.parametrize(("moment", "seen"), [("", True), ("+ interval '1 microsecond'", False)])
async def test_a_task_is_seen_from_its_very_moment_on(
    connection: AsyncConnection, lease: Lease, moment: str, seen: bool
) -> None:
    await submit(connection)
    rows = await at_the_same_moment(
        connection, f"UPDATE fleet.task SET run_at = statement_timestamp() {moment}", claim.PEEK, names=["work"],
        queues=["default"], priorities=[5], run_ats=["-infinity"], ids=[UUID(int=0)],
    )  # fmt: skip
    assert rows[0][1] is seen


async def test_a_peek_tells_when_the_next_task_is_due(connection: AsyncConnection, lease: Lease) -> None:
    assert (await claim.peek(connection, lanes_of("default"), ["work"])).next_due_seconds is None
    await submit(connection, delay=timedelta(hours=2))
    await submit(connection, delay=timedelta(hours=1), priority=9)

    seconds = (await claim.peek(connection, lanes_of("default"), ["work"])).next_due_seconds
    assert seconds is not None
    assert 3500 < seconds <= 3600


async def test_a_peek_costs_no_transaction_and_changes_nothing(connection: AsyncConnection, lease: Lease) -> None:
    task_id = await submit(connection)
    before = await row(connection, task_id)
    async with connection.transaction():
        await ready(connection)
        assert await scalar(connection, "SELECT pg_current_xact_id_if_assigned()") is None
    assert await row(connection, task_id) == before


async def test_the_moments_of_peeks_do_not_go_back(connection: AsyncConnection, lease: Lease) -> None:
    moments = [(await claim.peek(connection, lanes_of("default"), ["work"])).seen for _ in range(5)]
    assert moments == sorted(moments)


async def test_a_look_back_finds_the_first_task_behind_the_cursor_and_a_claim_from_there_takes_it(
    connection: AsyncConnection, lease: Lease
) -> None:
    first, second = await submit(connection, run_at=PAST), await submit(connection, run_at=PAST + MINUTE)
    for cursor in (claim.Position("infinity", UUID(int=0)), claim.Position(PAST.isoformat(), first)):
        found = await claim.look_back(connection, lanes_of("default", position=cursor), ["work"])
        assert list(found) == [("default", PRIORITY_DEFAULT)]
        (position,) = found.values()
        claimed = await claim.claim(
            connection, lease, [claim.Lane("default", PRIORITY_DEFAULT, position)], {"work": True}, 1
        )
        assert claimed is not None
        assert [task.id for task in claimed.tasks] == [first]
        await settle_one(connection, claimed.tasks[0], Released("put back"))
    assert second != first


async def test_a_look_back_sees_neither_what_lies_ahead_nor_what_a_claim_would_not_take(
    connection: AsyncConnection, lease: Lease
) -> None:
    task = await submit(connection, run_at=PAST)
    before = claim.Position(PAST.isoformat(), UUID(int=task.int - 1))
    assert await claim.look_back(connection, lanes_of("default", position=before), ["work"]) == {}

    ahead = lanes_of("default", position=claim.Position("infinity", UUID(int=0)))
    assert await claim.look_back(connection, ahead, ["foreign"]) == {}
    await queue.pause(connection, "default", "operator")
    assert await claim.look_back(connection, ahead, ["work"]) == {}
    await queue.resume(connection, "default", "operator")
    await take(connection, lease)
    assert await claim.look_back(connection, ahead, ["work"]) == {}
