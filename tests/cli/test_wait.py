"""`fleet task submit --wait`: the result on stdout, and what became of a task that has none."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import psycopg
import pytest

from fleet.postgres import cancel, settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Errored, FailureCode, Outcome, Settlement, Succeeded
from tests import support
from tests.cli.conftest import Command
from tests.cli.conftest import Outcome as Ended
from tests.cli.test_processes import read_until, start

SUBMIT = ("task", "submit", "add", '{"a": 1}')


@pytest.fixture(autouse=True)
def app(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_APP", shop)


@asynccontextmanager
async def waiting(fleet: Command, connection: AsyncConnection, *options: str) -> AsyncIterator["asyncio.Future[Ended]"]:
    """A command that has submitted its task and waits for its end."""
    command = asyncio.ensure_future(fleet(*SUBMIT, "--wait", *options))

    async def looks() -> bool:
        return bool(
            await support.execute(
                connection,
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'fleet client' AND query LIKE '%result::text%'",
            )
        )

    await support.eventually(looks)
    yield command


async def end(connection: AsyncConnection, outcome: Outcome) -> UUID:
    lease = await support.new_lease(connection, queues=["sums"])
    (task,) = await support.claim_some(connection, lease, name="add", queue="sums")
    verb = settle.succeed if isinstance(outcome, Succeeded) else settle.give_back
    await verb(connection, lease, [Settlement(task, outcome)])
    return task.id


async def test_the_result_is_all_that_is_printed(fleet: Command, connection: AsyncConnection) -> None:
    async with waiting(fleet, connection) as command:
        task_id = await end(connection, Succeeded('{"words": 3}'))
        ended = await command
    assert (ended.code, ended.json) == (0, {"words": 3})
    assert str(task_id) in ended.err


async def test_as_json_it_is_the_whole_story(fleet: Command, connection: AsyncConnection) -> None:
    async with waiting(fleet, connection, "--wait-timeout", "60s", "-o", "json") as command:
        task_id = await end(connection, Succeeded("null"))
        ended = await command
    assert (ended.code, ended.json) == (
        0,
        {"id": str(task_id), "created": True, "state": "SUCCEEDED", "result": None},
    )
    again = await fleet(*SUBMIT, "--idempotency-key", "k", "-o", "json")
    (claimed,) = await support.claim_some(
        connection, await support.new_lease(connection, queues=["sums"]), name="add", queue="sums"
    )
    await settle.succeed(connection, claimed.lease, [Settlement(claimed, Succeeded("2"))])
    ended = await fleet(*SUBMIT, "--idempotency-key", "k", "-o", "json", "--wait")
    assert ended.json == {"id": again.json["id"], "created": False, "state": "SUCCEEDED", "result": 2}


@pytest.mark.parametrize("output", ["table", "json"])
async def test_a_failure_is_told_with_its_code_and_reason(
    fleet: Command, connection: AsyncConnection, output: str
) -> None:
    async with waiting(fleet, connection, "-o", output) as command:
        task_id = await end(connection, Errored(FailureCode.HANDLER_ERROR, "ValueError: no sums today", None))
        ended = await command
    assert ended.code == 1
    assert f"task {task_id} failed (handler_error): ValueError: no sums today" in ended.err
    failure = {"failure_code": "handler_error", "failure_reason": "ValueError: no sums today"}
    story = {"id": str(task_id), "created": True, "state": "FAILED", "result": None} | failure
    assert ended.out == "" if output == "table" else ended.json == story


async def test_a_cancelled_task_is_no_success(fleet: Command, connection: AsyncConnection) -> None:
    async with waiting(fleet, connection) as command:
        ((task_id,),) = await support.execute(connection, "SELECT id FROM fleet.task")
        await cancel.cancel(connection, [task_id], "somebody")
        ended = await command
    assert (ended.code, ended.out) == (1, "")
    assert f"task {task_id} was cancelled" in ended.err


@pytest.mark.parametrize("output", ["table", "json"])
async def test_a_wait_that_is_over_leaves_the_task_alone(
    fleet: Command, connection: AsyncConnection, output: str
) -> None:
    ended = await fleet(*SUBMIT, "--wait-timeout", "50ms", "-o", output)
    ((task_id, state),) = await support.execute(connection, "SELECT id, state FROM fleet.task")
    assert (ended.code, state) == (1, "QUEUED")
    assert f"it is QUEUED; task {task_id} goes on: `fleet task show {task_id}`" in ended.err
    story = {"id": str(task_id), "created": True, "state": "QUEUED", "result": None}
    assert ended.out == "" if output == "table" else ended.json == story


async def test_an_interrupted_wait_says_that_the_task_goes_on(fleet: Command, connection: AsyncConnection) -> None:
    with start(*SUBMIT, "--wait") as process:
        assert process.stderr is not None
        read_until(process.stderr.fileno(), b"waiting for task")
        await support.eventually(
            lambda: support.execute(
                connection,
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'fleet client'",
            )
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    ((task_id,),) = await support.execute(connection, "SELECT id FROM fleet.task")
    assert (process.returncode, out) == (130, b"")
    assert f"interrupted; task {task_id} goes on".encode() in err
    assert b"Traceback" not in err


async def test_a_database_that_is_lost_meanwhile_does_not_call_the_submission_into_doubt(
    fleet: Command, connection: AsyncConnection, database_url: str, server_url: str
) -> None:
    name = database_url.rpartition("/")[2]
    async with waiting(fleet, connection) as command:
        ((task_id,),) = await support.execute(connection, "SELECT id FROM fleet.task")
        await connection.close()
        with psycopg.connect(server_url, autocommit=True) as server:
            server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
            try:
                server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
                ended = await command
            finally:
                server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
    assert (ended.code, ended.out) == (3, "")
    assert f"task {task_id} goes on" in ended.err
    assert "submit again" not in ended.err


async def test_a_worker_ends_the_wait(fleet: Command) -> None:
    with start("worker", "run", "--ttl", "2s") as worker:
        try:
            ended = await fleet("task", "submit", "add", '{"a": 1, "b": 2}', "--wait-timeout", "30s")
            assert (ended.code, json.loads(ended.out)) == (0, 3)
        finally:
            worker.terminate()
            worker.communicate()
