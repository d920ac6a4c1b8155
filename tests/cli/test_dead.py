"""`fleet dead`: only what was meant, only the failure that was seen."""

import asyncio
from uuid import UUID, uuid4

import pytest

from fleet.postgres import settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Errored, FailureCode, Settlement
from tests import support
from tests.cli.conftest import Command

BULK_VERBS = pytest.mark.parametrize("verb", ["requeue", "discard"])


async def fail(connection: AsyncConnection, *names: str, queue: str = "default", reason: str = "no") -> list[UUID]:
    """Submit tasks of these names and let each fail for good, in one attempt."""
    lease = await support.new_lease(connection)
    ids = []
    for name in names:
        ids.append(await support.submit(connection, name=name, queue=queue))
        tasks = await support.claim_some(connection, lease, name=name, queue=queue)
        failed = Errored(FailureCode.HANDLER_ERROR, reason, None)
        await settle.give_back(connection, lease, [Settlement(task, failed) for task in tasks])
    return ids


async def states(connection: AsyncConnection, ids: list[UUID]) -> list[tuple[str, bool]]:
    rows = [await support.row(connection, task_id) for task_id in ids]
    return [(row["state"], row["resolved_at"] is not None) for row in rows]


async def test_list_shows_and_filters(fleet: Command, connection: AsyncConnection) -> None:
    nothing = await fleet("dead", "list")
    assert (nothing.code, nothing.out) == (0, "")
    one, two = await fail(connection, "one", "two", reason="ValueError: no\nmore")
    listed = await fleet("dead", "list", "--name", "two", "-o", "json")
    assert [row["id"] for row in listed.json] == [str(two)]
    assert listed.json[0]["failure_reason"] == "ValueError: no\nmore"
    table = await fleet("dead", "list", "--queue", "default", "--code", "handler_error", "--limit", 1)
    assert [line[0] for line in table.lines] == ["ID", str(one)]
    assert table.lines[1][-1] == "ValueError: no ..."
    assert "--limit" in table.err
    assert (await fleet("dead", "list", "--code", "timeout", "-o", "json")).json == []
    assert (await fleet("dead", "list", "--code", "bad_luck")).code == 2


async def test_requeue_by_id_asks_nothing_and_gives_fresh_budgets(fleet: Command, connection: AsyncConnection) -> None:
    ids = await fail(connection, "one", "two")
    outcome = await fleet("dead", "requeue", ids[0], "-o", "json")
    assert (outcome.code, outcome.json) == (0, {"requeued": [str(ids[0])], "changed_meanwhile": []})
    assert await states(connection, ids) == [("QUEUED", False), ("FAILED", False)]
    assert (await support.row(connection, ids[0]))["failures"] == 0


async def test_discard_by_filter(fleet: Command, connection: AsyncConnection) -> None:
    ids = await fail(connection, "one", "two")
    outcome = await fleet("dead", "discard", "--name", "two", "--yes")
    assert (outcome.code, outcome.out) == (0, "")
    assert "dead letters that match: 1" in outcome.err
    assert "1 discarded" in outcome.err
    assert await states(connection, ids) == [("FAILED", False), ("FAILED", True)]


@BULK_VERBS
async def test_bulk_needs_one_way_to_say_which(fleet: Command, connection: AsyncConnection, verb: str) -> None:
    ids = await fail(connection, "one")
    for which in ([], ["--all", "--queue", "default"], [ids[0], "--all"], [ids[0], "--name", "one"]):
        outcome = await fleet("dead", verb, *which, "--yes")
        assert outcome.code == 2, which
        assert "--all" in outcome.err
    assert await states(connection, ids) == [("FAILED", False)]


@BULK_VERBS
async def test_bulk_changes_nothing_where_nobody_can_be_asked(
    fleet: Command, connection: AsyncConnection, verb: str
) -> None:
    ids = await fail(connection, "one", "two")
    outcome = await fleet("dead", verb, "--all", stdin="y\n")
    assert outcome.code == 2
    assert "dead letters that match: 2" in outcome.err
    assert "--yes" in outcome.err
    assert await states(connection, ids) == [("FAILED", False)] * 2
    assert (await fleet("dead", verb, "--all", "--yes")).code == 0
    assert (await fleet("dead", verb, "--all")).code == 0  # nothing is left: nothing to ask


async def test_very_many_are_judged_in_batches(fleet: Command, connection: AsyncConnection) -> None:
    await support.execute(
        connection,
        "INSERT INTO fleet.task (id, queue, name, state, max_attempts, max_losses) "
        "SELECT gen_random_uuid(), 'default', 'work', 'FAILED', 1, 1 FROM generate_series(1, 2001)",
    )
    assert "2001 requeued" in (await fleet("dead", "requeue", "--all", "--yes")).err
    assert await support.execute(connection, "SELECT DISTINCT state FROM fleet.task") == [("QUEUED",)]


@BULK_VERBS
async def test_an_id_that_is_no_dead_letter_changes_nothing(
    fleet: Command, connection: AsyncConnection, verb: str
) -> None:
    ids = await fail(connection, "one", "two")
    assert (await fleet("dead", verb, ids[0], uuid4())).code == 5
    waiting = await support.submit(connection)
    refused = await fleet("dead", verb, ids[0], waiting)
    assert refused.code == 6
    assert "QUEUED" in refused.err
    assert await states(connection, ids) == [("FAILED", False)] * 2
    assert (await fleet("dead", "discard", ids[1])).code == 0
    assert "was judged" in (await fleet("dead", verb, ids[1])).err


@BULK_VERBS
async def test_a_task_that_somebody_else_requeues_first_is_a_conflict(
    fleet: Command, connection: AsyncConnection, other: AsyncConnection, verb: str
) -> None:
    ids = await fail(connection, "one")
    await connection.execute("BEGIN")
    await connection.execute("UPDATE fleet.task SET state = 'QUEUED', failure_code = NULL, failure_reason = NULL")
    command = asyncio.ensure_future(fleet("dead", verb, ids[0]))
    await blocked_command(other)
    await connection.execute("COMMIT")
    outcome = await command
    assert outcome.code == 6
    assert str(ids[0]) in outcome.err
    assert await states(connection, ids) == [("QUEUED", False)]


@BULK_VERBS
async def test_a_task_that_fails_again_meanwhile_is_left_alone(
    fleet: Command, connection: AsyncConnection, other: AsyncConnection, verb: str
) -> None:
    ids = await fail(connection, "one", "two")
    await connection.execute("BEGIN")
    await connection.execute("UPDATE fleet.task SET attempt = attempt + 1 WHERE id = %s", (ids[0],))
    command = asyncio.ensure_future(fleet("dead", verb, "--all", "--yes", "-o", "json"))
    await blocked_command(other)
    await connection.execute("COMMIT")
    outcome = await command
    assert outcome.code == 0
    done = "requeued" if verb == "requeue" else "discarded"
    assert outcome.json == {done: [str(ids[1])], "changed_meanwhile": [str(ids[0])]}
    assert (await states(connection, ids))[0] == ("FAILED", False)


async def blocked_command(connection: AsyncConnection) -> None:
    """Wait until the command waits for somebody's lock."""

    async def probe() -> bool:
        rows = await support.execute(
            connection,
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'fleet cli' "
            "AND wait_event_type = 'Lock'",
        )
        return bool(rows)

    await support.eventually(probe)


async def test_an_empty_name_is_no_wildcard(fleet: Command, connection: AsyncConnection) -> None:
    await fail(connection, "one", "two")
    outcome = await fleet("dead", "discard", "--queue", "default", "--name", "", "--yes", "-o", "json")
    assert (outcome.code, outcome.json["discarded"]) == (0, [])
    assert (await fleet("task", "list", "--name", "", "-o", "json")).json == []
