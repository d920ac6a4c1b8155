"""`fleet queue`: what is paused, served and waited in."""

from fleet.postgres.database import AsyncConnection
from tests import support
from tests.cli.conftest import Command


async def test_list_shows_queues_that_only_tasks_know_of(fleet: Command, connection: AsyncConnection) -> None:
    empty = await fleet("queue", "list")
    assert (empty.code, empty.out) == (0, "")
    await support.new_lease(connection, queues=["sums"])
    for queue in ("sums", "unserved", "unserved"):
        await support.submit(connection, queue=queue)
    outcome = await fleet("queue", "list", "-o", "json")
    assert outcome.json == [
        {"name": "sums", "paused": False, "retention_seconds": None, "workers": 1, "queued": 1},
        {"name": "unserved", "paused": False, "retention_seconds": None, "workers": 0, "queued": 2},
    ]
    table = await fleet("queue", "list")
    assert table.lines[:2] == [
        ["QUEUE", "PAUSED", "WORKERS", "QUEUED", "RETENTION"],
        ["sums", "no", "1", "1", "default"],
    ]


async def test_pause_and_resume_may_be_repeated(fleet: Command, connection: AsyncConnection) -> None:
    await support.new_lease(connection, queues=["sums"])
    paused = await fleet("queue", "pause", "sums", "-o", "json")
    assert (paused.code, paused.json) == (0, {"name": "sums", "paused": True, "changed": True})
    again = await fleet("queue", "pause", "sums")
    assert (again.code, again.out) == (0, "")
    assert "already" in again.err
    assert (await fleet("queue", "list")).lines[1] == ["sums", "yes", "1", "0", "default"]
    resumed = await fleet("queue", "resume", "sums", "-o", "json")
    assert (resumed.code, resumed.json) == (0, {"name": "sums", "paused": False, "changed": True})
    assert "was not paused" in (await fleet("queue", "resume", "sums")).err


async def test_who_paused_it_is_on_record(fleet: Command, connection: AsyncConnection) -> None:
    await support.submit(connection, queue="sums")
    await fleet("queue", "pause", "sums")
    rows = await support.execute(connection, "SELECT actor, action, subject FROM fleet.audit")
    actor, action, subject = rows[0]
    assert (action, subject) == ("pause", "sums")
    assert "@" in actor


async def test_what_is_no_queue_is_refused(fleet: Command, connection: AsyncConnection) -> None:
    await support.new_lease(connection, queues=["sums"])
    for verb in ("pause", "resume"):
        mistyped = await fleet("queue", verb, "smus")
        assert (mistyped.code, mistyped.out) == (5, "")
        assert "there are: sums" in mistyped.err
    assert [line[0] for line in (await fleet("queue", "list")).lines] == ["QUEUE", "sums"]
    assert (await fleet("queue", "pause", "")).code == 2
    assert (await fleet("queue", "pause", "a\nb")).code == 2


async def test_how_long_a_queue_keeps_can_be_said_and_taken_back(fleet: Command, connection: AsyncConnection) -> None:
    await support.new_lease(connection, queues=["sums"])
    said = await fleet("queue", "retain", "sums", "30d", "-o", "json")
    assert (said.code, said.json) == (0, {"name": "sums", "retention_seconds": 30 * 86_400.0, "changed": True})
    assert (await fleet("queue", "list")).lines[1][-1] == "30 d"
    assert (await fleet("queue", "list", "-o", "json")).json[0]["retention_seconds"] == 30 * 86_400.0
    assert "kept already" in (await fleet("queue", "retain", "sums", "30d")).err
    assert (await fleet("queue", "retain", "sums", "--default")).code == 0
    assert (await fleet("queue", "list")).lines[1][-1] == "default"
    actors = await support.execute(connection, "SELECT action, detail FROM fleet.audit ORDER BY id")
    assert actors == [("retain", "30 days"), ("retain", "default")]


async def test_a_retention_that_cannot_be_meant_is_refused(fleet: Command, connection: AsyncConnection) -> None:
    await support.new_lease(connection, queues=["sums"])
    for words in (["sums"], ["sums", "30d", "--default"], ["sums", "soon"], ["sums", "10m"], ["sums", "1e9d"]):
        assert (await fleet("queue", "retain", *words)).code == 2, words
    assert (await fleet("queue", "retain", "smus", "30d")).code == 5
