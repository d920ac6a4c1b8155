"""The same key again is the same task, whatever happened to the first answer."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from fleet import Fleet, Settings
from fleet.app import Task
from fleet.http.server import asgi
from fleet.postgres.database import AsyncConnection
from tests.http.conftest import client_of
from tests.http.running import Running
from tests.http.shop import shop
from tests.support import PATIENCE_SECONDS, eventually, submit

ADD = {"name": "add", "args": {"a": 1}}


async def post(api: httpx.AsyncClient, key: str | None, **changes: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await api.post("/tasks", json=ADD | changes, headers=headers)


async def count(connection: AsyncConnection) -> int:
    row = await (await connection.execute("SELECT count(*) FROM fleet.task")).fetchone()
    assert row is not None
    return int(row[0])


async def test_the_same_key_and_request_is_the_same_task(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    first, again = await post(api, "k"), await post(api, "k")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.headers["Location"] == again.headers["Location"]
    assert again.json() == first.json() | {"created": False}
    assert await count(connection) == 1


async def test_the_same_task_is_told_as_it_is_now(api: httpx.AsyncClient) -> None:
    first = await post(api, "k")
    await api.post(f"{first.headers['Location']}/cancel")
    assert (await post(api, "k")).json()["state"] == "CANCELLED"


async def test_without_a_key_each_request_is_a_task(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    assert (await post(api, None)).json()["id"] != (await post(api, None)).json()["id"]
    assert await count(connection) == 2


async def test_another_key_is_another_task(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    for key in ("k", "K", "k,", "~" * 255):
        assert (await post(api, key)).json()["created"] is True
    assert await count(connection) == 4


@pytest.mark.fault("Submit", "the same key with another payload")
@pytest.mark.parametrize(
    "other",
    [
        {"args": {"a": 2}},
        {"args": {"a": 1, "b": 0}},
        {"queue": "default"},
        {"priority": 0},
        {"max_attempts": 2},
        {"max_losses": 2},
        {"idempotent": False},
        {"name": "echo", "args": {}},
    ],
)
async def test_the_same_key_for_another_request_is_refused(
    api: httpx.AsyncClient, connection: AsyncConnection, other: dict[str, Any]
) -> None:
    first = await post(api, "k")
    refused = await post(api, "k", **other)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
    assert refused.json()["task_id"] == first.json()["id"]
    assert await count(connection) == 1


@pytest.mark.parametrize(
    "moved",
    [
        {"delay_seconds": 5},
        {"run_at": "2030-01-01T00:00:00Z"},
        {"expires_at": "2030-01-01T00:00:00Z"},
        {"timeout_seconds": 9},
    ],
)
async def test_moments_and_time_limits_do_not_make_it_another_request(
    api: httpx.AsyncClient, moved: dict[str, Any]
) -> None:
    first = await post(api, "k")
    assert (await post(api, "k", **moved)).json() == first.json() | {"created": False}


async def test_the_order_of_arguments_does_not_make_it_another_request(api: httpx.AsyncClient) -> None:
    first = await post(api, "k", args={"a": 1, "b": 2})
    assert (await post(api, "k", args={"b": 2, "a": 1})).json()["id"] == first.json()["id"]


@pytest.mark.parametrize("key", [b"", b" ", b"a b", b"\xc3\xbc", b"x" * 256, b"a\tb", b"\x7f"])
async def test_a_malformed_key_is_refused(api: httpx.AsyncClient, connection: AsyncConnection, key: bytes) -> None:
    answer = await api.post("/tasks", json=ADD, headers={b"Idempotency-Key": key})
    assert answer.status_code == 400
    assert [each["header"] for each in answer.json()["errors"]] == ["idempotency-key"]
    assert await count(connection) == 0


async def test_two_keys_in_one_request_are_refused(api: httpx.AsyncClient) -> None:
    keys = [("Idempotency-Key", "k"), ("Idempotency-Key", "l")]
    assert (await api.post("/tasks", json=ADD, headers=keys)).status_code == 400


@pytest.mark.fault("Submit", "50 identical submits at once")
async def test_fifty_at_once_make_one_task(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    answers = await asyncio.gather(*(post(api, "k") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert [answer.json()["created"] for answer in answers].count(True) == 1
    assert await count(connection) == 1


async def test_the_keys_of_python_code_never_meet_those_of_http(
    app: Fleet, api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    add: Task[..., int] = Task(app, app.handlers["add"]).options(idempotency_key="k")
    ours = await add.submit(a=1)
    theirs = await post(api, "k", args={"a": 2})
    assert (theirs.status_code, theirs.json()["created"]) == (202, True)
    assert (await add.submit(a=1)).id == ours.id
    assert await count(connection) == 2


async def test_a_key_whose_task_was_pruned_makes_no_second_one(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    first = await post(api, "k")
    await connection.execute("DELETE FROM fleet.task")
    again = await post(api, "k")
    assert again.status_code == 202, again.text
    assert again.json() == {"id": first.json()["id"], "name": "add", "queue": "sums", "created": False}
    assert await count(connection) == 0


@asynccontextmanager
async def in_flight(connection: AsyncConnection) -> AsyncIterator[None]:
    """Hold a first request with the key `k`, not committed; it is rolled back at the end."""
    async with connection.transaction(force_rollback=True):
        await submit(connection, name="add", queue="sums", args='{"a":1}', priority=3, key="k", scope="http")
        yield


async def test_while_the_first_request_is_in_flight_the_second_is_told_to_wait(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    async with in_flight(connection):
        waits = await post(api, "k")
    assert (waits.status_code, waits.json()["code"]) == (409, "in_flight")
    assert int(waits.headers["Retry-After"]) > 0
    again = await post(api, "k")
    assert (again.status_code, again.json()["created"]) == (202, True)  # for the first was rolled back


@pytest.mark.fault("Submit", "a retry after a lost response")
async def test_a_connection_lost_under_way_leaves_the_outcome_unknown_and_a_retry_settles_it(
    api: httpx.AsyncClient, connection: AsyncConnection, other: AsyncConnection
) -> None:
    async def end_the_waiting() -> bool:
        found = await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'fleet client' AND wait_event_type = 'Lock'"
        )
        return bool(await found.fetchall())

    async with in_flight(connection):
        asked = asyncio.ensure_future(post(api, "k"))
        await eventually(end_the_waiting)
        answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
    assert "Retry-After" in answer.headers
    first, again = await post(api, "k"), await post(api, "k")
    assert (first.status_code, again.status_code, again.json()["id"]) == (202, 202, first.json()["id"])
    assert await count(connection) == 1


@pytest.mark.fault("Submit", "a retry after a lost response")
def test_a_server_killed_after_the_commit_leaves_one_task_which_the_retry_finds(
    database_url: str, tmp_path: Path
) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    key = {"Idempotency-Key": "k"}
    doomed = ("-m", "tests.http.doomed", str(listening.fileno()))
    with listening, httpx.Client(base_url=address, trust_env=False, timeout=PATIENCE_SECONDS) as client:
        with Running(tmp_path, database_url, program=doomed, listening=listening) as running:
            assert client.get("/livez").status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                client.post("/tasks", json=ADD, headers=key | {"Doom": "now"})
            assert running.ended() == -9
        with psycopg.connect(database_url) as connection:
            committed = connection.execute("SELECT id::text FROM fleet.task").fetchall()
        with Running(tmp_path, database_url, listening=listening):
            again = client.post("/tasks", json=ADD, headers=key)
    assert again.status_code == 202
    assert (again.json()["id"], again.json()["created"]) == (committed[0][0], False)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM fleet.task").fetchone() == (1,)


async def test_an_unreachable_database_is_told_as_such_and_a_retry_makes_the_task_as_soon_as_it_is_back(
    server_url: str, database_url: str, settings: Settings, connection: AsyncConnection
) -> None:
    app = shop(database_url, settings.changed(statement_timeout=timedelta(seconds=2)))
    name = sql.Identifier(httpx.URL(database_url).path[1:])
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        async with client_of(asgi(app, token=None)) as api:
            try:
                answers = [await post(api, "k") for _ in range(2)]
            finally:
                admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
            back = await post(api, "k")
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == 2 * [(503, "database_unreachable")]
    assert all("Retry-After" in answer.headers for answer in answers)
    assert back.status_code == 202, back.text
    assert await count(connection) == 1
