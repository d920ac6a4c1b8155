"""GET /tasks, GET /tasks/{id} and POST /tasks/{id}/cancel."""

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import Dialect, Select
from sqlalchemy.dialects.postgresql.psycopg import dialect
from uuid_utils.compat import uuid7

from fleet import Fleet
from fleet.lease import Lease
from fleet.postgres import inspect, settle
from fleet.postgres.database import AsyncConnection, Connection
from fleet.task import Errored, FailureCode, Released, Settlement, State, Succeeded
from tests.http.steps import ended, failed, problem, submitted
from tests.postgres.steps import MINUTE, reap_lease, settle_one, take
from tests.support import claim_some, new_lease, submit

ALWAYS = {
    "id", "name", "queue", "priority", "state", "attempt", "created_at", "run_at", "args", "repeatable",
    "cancel_requested", "failures", "losses", "max_attempts", "max_losses", "attempts",
}  # fmt: skip
MISTYPED = [
    ("stat=QUEUED", "stat"), ("state=queued", "state"), ("state=", "state"), ("queue=", "queue"), ("name=", "name"),
    ("queue=%00", "queue"), ("queue=" + "x" * 201, "queue"), ("limit=0", "limit"), ("limit=1001", "limit"),
    ("limit=x", "limit"), ("limit=1.5", "limit"), ("limit=" + "9" * 5000, "limit"), ("cursor=x", "cursor"),
    ("limit=5&limit=5", "limit"), ("queue=a&queue=b", "queue"), ("a/b~=1", "a/b~"), ("Limit=5", "Limit"),
]  # fmt: skip


@pytest.fixture
async def lease(connection: AsyncConnection) -> Lease:
    return await new_lease(connection, worker="holder", ttl=MINUTE)


async def shown(api: httpx.AsyncClient, task_id: UUID) -> dict[str, Any]:
    answer = await api.get(f"/tasks/{task_id}")
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()
    assert None not in [value for name, value in task.items() if name != "result"]
    return task


async def test_a_waiting_task_is_shown_with_what_was_said_and_nothing_that_is_not_known_yet(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    later = datetime.fromisoformat("2100-01-01T00:00:00+00:00")
    plain = await shown(api, await submit(connection))
    full = await shown(
        api,
        await submit(
            connection, args='{"a":[1]}', priority=1, timeout=timedelta(seconds=1.5), expires_at=later, idempotent=False
        ),
    )
    assert set(plain) == ALWAYS
    assert set(full) == ALWAYS | {"timeout_seconds", "expires_at", "idempotent"}
    assert (full["args"], full["timeout_seconds"], full["idempotent"]) == ({"a": [1]}, 1.5, False)
    assert datetime.fromisoformat(full["expires_at"]) == later
    assert (full["state"], full["attempt"], full["attempts"]) == ("QUEUED", 0, [])


async def test_a_running_task_is_shown_with_where_it_runs(
    api: httpx.AsyncClient, connection: AsyncConnection, lease: Lease
) -> None:
    task = await shown(api, (await take(connection, lease)).id)
    assert set(task) == ALWAYS | {"started_at", "lease_id", "worker", "host", "pid"}
    assert (task["worker"], task["host"], task["pid"], task["lease_id"]) == ("holder", "host", 1, str(lease.id))
    assert (task["attempt"], task["repeatable"]) == (1, True)


@pytest.mark.parametrize("result", ["null", "0", '{"a":[1.5,null]}'])
async def test_a_task_that_succeeded_is_shown_with_its_result_even_if_that_is_null(
    api: httpx.AsyncClient, connection: AsyncConnection, lease: Lease, result: str
) -> None:
    task = await take(connection, lease)
    await settle_one(connection, task, Succeeded(result))
    found = await shown(api, task.id)
    assert set(found) == ALWAYS | {"started_at", "finished_at", "result"}
    assert found["result"] == json.loads(result)


async def test_a_task_that_failed_is_shown_with_why(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    (task_id,) = await failed(connection, code=FailureCode.TIMEOUT)
    found = await shown(api, task_id)
    assert set(found) == ALWAYS | {"started_at", "finished_at", "failure_code", "failure_reason"}
    assert (found["state"], found["failure_code"], found["failure_reason"]) == ("FAILED", "timeout", "boom")
    await api.post("/dead/discard", json={"all": True})
    assert (await shown(api, task_id))["resolved_at"]


async def test_the_history_tells_every_attempt_that_did_not_succeed_and_late_reports(
    api: httpx.AsyncClient, connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease)
    await settle_one(connection, task, Errored(FailureCode.HANDLER_ERROR, "boom", timedelta(0)))
    (again,) = await claim_some(connection, lease)
    await settle_one(connection, again, Released("drained"))
    (lost,) = await claim_some(connection, lease)
    await reap_lease(connection, lease)
    await settle.record_late(connection, lease, [Settlement(lost, Succeeded("1"))])
    found = await shown(api, task.id)
    assert [(each["attempt"], each["late"], each["outcome"], each["worker"]) for each in found["attempts"]] == [
        (1, False, "error", "holder"),
        (2, False, "released", "holder"),
        (3, False, "lost", "holder"),
        (3, True, "succeeded", "holder"),
    ]
    assert found["attempts"][0]["detail"] == "boom"
    assert {each["lease_id"] for each in found["attempts"]} == {str(lease.id)}
    assert all(datetime.fromisoformat(each["at"]).tzinfo for each in found["attempts"])


@pytest.mark.parametrize(("method", "path"), [("GET", "/tasks/{}"), ("POST", "/tasks/{}/cancel")])
async def test_a_task_that_is_not_there_is_told_as_such(api: httpx.AsyncClient, method: str, path: str) -> None:
    problem(await api.request(method, path.format(uuid7())), 404, "not_found")
    for wrong in ("7", "x" * 36, "%00", "a%20b", str(uuid7())[:-1]):
        told = problem(await api.request(method, path.format(wrong)), 422, "invalid")
        assert [each["parameter"] for each in told["errors"]] == ["id"]


async def test_the_list_shows_the_newest_first_without_arguments_and_results(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    ids = [str(await submit(connection)) for _ in range(3)]
    answer = await api.get("/tasks")
    assert [each["id"] for each in answer.json()["items"]] == ids[::-1]
    assert set(answer.json()) == {"items"}
    assert not {"args", "result", "attempts"} & set(answer.json()["items"][0])


async def test_filters_select_what_matches_all_of_them(
    api: httpx.AsyncClient, connection: AsyncConnection, lease: Lease
) -> None:
    (d,) = await failed(connection, ["a"], queue="x")
    a = await submit(connection, name="a", queue="x")
    b = await submit(connection, name="b", queue="x")
    c = await submit(connection, name="a", queue="y/z é")

    async def found(**query: str) -> set[UUID]:
        return {UUID(each["id"]) for each in (await api.get("/tasks", params=query)).json()["items"]}

    assert await found(queue="x") == {a, b, d}
    assert await found(queue="y/z é") == {c}
    assert await found(name="a") == {a, c, d}
    assert await found(state="FAILED") == {d}
    assert await found(state="QUEUED", queue="x", name="a") == {a}
    assert await found(queue="none") == set()


async def test_a_query_that_is_mistyped_is_refused_and_does_not_match_everything(api: httpx.AsyncClient) -> None:
    for query, parameter in MISTYPED:
        told = problem(await api.get(f"/tasks?{query}"), 422, "invalid")
        assert [each["parameter"] for each in told["errors"]] == [parameter], query


async def test_no_route_takes_a_query_that_it_does_not_know(api: httpx.AsyncClient) -> None:
    for path in ("/queues", "/livez", "/readyz", "/workers", "/dead", f"/tasks/{uuid7()}"):
        problem(await api.get(path, params={"unknown": "1"}), 422, "invalid")


async def test_pages_show_each_task_once_while_others_come_in(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    there = [str(await submit(connection)) for _ in range(250)]
    seen: list[str] = []
    sizes = []
    query: dict[str, Any] = {"limit": 40}
    while True:
        page = (await api.get("/tasks", params=query)).json()
        seen += [each["id"] for each in page["items"]]
        sizes.append(len(page["items"]))
        await submit(connection)
        if "next" not in page:
            break
        query["cursor"] = page["next"]
    assert seen == there[::-1]
    assert sizes == [40] * 6 + [10]


async def test_a_page_that_is_just_full_is_the_last(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    for _ in range(5):
        await submit(connection)
    assert "next" not in (await api.get("/tasks?limit=5")).json()
    assert "next" in (await api.get("/tasks?limit=4")).json()


async def test_a_waiting_task_is_cancelled_and_once_more_changes_nothing(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    task_id = str(await submit(connection))
    first, again = [await api.post(f"/tasks/{task_id}/cancel") for _ in range(2)]
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == {"id": task_id, "state": "CANCELLED", "changed": True}
    assert again.json() == {"id": task_id, "state": "CANCELLED", "changed": False}
    audited = await connection.execute("SELECT actor, action FROM fleet.audit")
    assert await audited.fetchall() == [("http", "cancel")]


async def test_the_worker_of_a_running_task_is_asked_and_stops_it(app: Fleet, api: httpx.AsyncClient) -> None:
    task_id = await submitted(api, "hold")
    async with app.worker():
        await ended(api, task_id, State.RUNNING)
        answer = await api.post(f"/tasks/{task_id}/cancel")
        assert answer.json() == {"id": task_id, "state": "RUNNING", "changed": True}
        task = await ended(api, task_id, State.CANCELLED)
    assert task["cancel_requested"] is True


async def test_what_has_ended_is_past_cancelling(
    api: httpx.AsyncClient, connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease)
    await settle_one(connection, task, Succeeded("1"))
    for task_id in (task.id, *await failed(connection)):
        told = problem(await api.post(f"/tasks/{task_id}/cancel"), 409, "too_late")
        assert (await shown(api, task_id))["state"] in told["detail"]


async def test_a_task_that_somebody_holds_is_not_waited_for_long(
    api: httpx.AsyncClient, connection: AsyncConnection, lease: Lease
) -> None:
    task = await take(connection, lease)
    async with connection.transaction():
        await connection.execute("SELECT FROM fleet.task WHERE id = %s FOR UPDATE", (task.id,))
        waits, shows = await asyncio.gather(api.post(f"/tasks/{task.id}/cancel"), api.get(f"/tasks/{task.id}"))
    assert "Retry-After" in waits.headers
    problem(waits, 409, "in_flight")
    assert shows.json()["state"] == "RUNNING"


MANY = """
INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses, state, attempt, finished_at)
SELECT lpad(to_hex(number), 32, '0')::uuid, 'queue-' || number % 7, 'name-' || number % 11, 5, 3,
  CASE WHEN number % 3 = 0 THEN 'QUEUED' ELSE 'SUCCEEDED' END, 1, CASE WHEN number % 3 > 0 THEN now() END
FROM generate_series(1, 100000) AS number
"""
MIDDLE = UUID(int=50_000)
DIALECT: Dialect = dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own


@pytest.fixture(scope="module")
def many(one_url: str) -> Iterator[Connection]:
    """Lend a connection to a hundred thousand tasks, which are rolled back at the end."""
    with Connection.connect(one_url) as connection, connection.transaction(force_rollback=True):
        connection.execute(MANY)
        connection.execute("ANALYZE fleet.task")
        yield connection


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in nodes_of(part))]


@pytest.mark.parametrize(
    "question",
    [
        inspect.tasks(limit=101),
        inspect.tasks(before=MIDDLE, limit=101),
        inspect.tasks(state=State.SUCCEEDED, before=MIDDLE, limit=101),
        inspect.tasks(queue_name="queue-3", before=MIDDLE, limit=101),
        inspect.tasks(name="name-3", before=MIDDLE, limit=101),
        inspect.tasks(state=State.SUCCEEDED, queue_name="queue-3", name="name-3", before=MIDDLE, limit=101),
    ],
    ids=["first", "next", "state", "queue", "name", "all"],
)
def test_a_page_of_a_hundred_thousand_tasks_is_read_along_the_primary_key(
    many: Connection, question: Select[Any]
) -> None:
    text = str(question.compile(dialect=DIALECT, compile_kwargs={"literal_binds": True}))
    row = many.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + text.encode()).fetchone()
    assert row is not None
    nodes = nodes_of(row[0][0]["Plan"])
    assert [node["Node Type"] for node in nodes] == ["Limit", "Index Scan"]
    assert nodes[1]["Index Name"] == "task_pkey"
    read = nodes[1]["Actual Rows"] + nodes[1].get("Rows Removed by Filter", 0)
    assert read <= 101 * 7 * 11 * 3
