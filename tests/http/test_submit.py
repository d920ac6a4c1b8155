"""POST /tasks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from fleet import Fleet, Settings
from fleet.errors import ConfigurationError
from fleet.http.server import asgi
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.http.conftest import client_of
from tests.http.shop import shop
from tests.http.steps import ended, problem, submitted
from tests.support import row

YEAR = timedelta(days=365)
PARENT = f"00-{0xAB:032x}-{0xCD:016x}-01"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"queue": "mistyped"}, "#/queue"),
    ({"queue": ""}, "#/queue"),
    ({"priority": 10}, "#/priority"),
    ({"priority": -1}, "#/priority"),
    ({"priority": "5"}, "#/priority"),
    ({"priority": True}, "#/priority"),
    ({"delay_seconds": -0.001}, "#/delay_seconds"),
    ({"delay_seconds": 1e10}, "#/delay_seconds"),
    ({"run_at": "2026-01-01T00:00:00"}, "#/run_at"),
    ({"run_at": "tomorrow"}, "#/run_at"),
    ({"run_at": 1700000000}, "#/run_at"),
    ({"expires_at": "2026-13-01T00:00:00Z"}, "#/expires_at"),
    ({"timeout_seconds": 0}, "#/timeout_seconds"),
    ({"max_attempts": 0}, "#/max_attempts"),
    ({"max_attempts": 2**31}, "#/max_attempts"),
    ({"max_losses": 1.5}, "#/max_losses"),
    ({"idempotent": True}, "#/idempotent"),
    ({"idempotent": 0}, "#/idempotent"),
    ({"prioritty": 1}, "#/prioritty"),
    ({"idempotency_key": "k"}, "#/idempotency_key"),
    ({"a/b~c": 1}, "#/a~1b~0c"),
    ({"args": {}}, "#/args/a"),
    ({"args": None}, "#/args"),
    ({"args": [1]}, "#/args"),
    ({"args": {"a": "1"}}, "#/args/a"),
    ({"args": {"a": 1, "x/y~z": 1}}, "#/args/x~1y~0z"),
]


async def test_the_answer_names_a_task_that_is_committed(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    answer = await api.post("/tasks", json={"name": "add", "args": {"a": 1}})
    told = answer.json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/tasks/{told['id']}"
    assert told == {"id": told["id"], "name": "add", "queue": "sums", "state": "QUEUED", "created": True}
    task = await row(connection, told["id"])
    assert (task["name"], task["queue"], task["args"], task["priority"], task["max_attempts"], task["idempotent"]) == (
        "add", "sums", {"a": 1}, 3, 5, None,
    )  # fmt: skip
    assert (await api.get(answer.headers["Location"])).json()["id"] == told["id"]


async def test_everything_that_is_said_about_a_task_is_written(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    now = datetime.now(UTC)
    said = {
        "queue": "default", "priority": 9, "run_at": (now + YEAR).isoformat(), "expires_at": (now + 2 * YEAR).isoformat(),
        "timeout_seconds": 1.5, "max_attempts": 7, "max_losses": 8, "idempotent": False,
    }  # fmt: skip
    answer = await api.post("/tasks", json={"name": "add", "args": {"a": 1, "b": 2}, **said})
    assert answer.status_code == 202, answer.text
    task = await row(connection, answer.json()["id"])
    written = ("queue", "priority", "run_at", "expires_at", "timeout", "max_attempts", "max_losses", "idempotent")
    assert [task[name] for name in written] == [
        "default", 9, now + YEAR, now + 2 * YEAR, timedelta(seconds=1.5), 7, 8, False,
    ]  # fmt: skip


async def test_a_delay_is_counted_from_now_and_goes_before_run_at(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    order = {"name": "echo", "delay_seconds": 100, "run_at": (datetime.now(UTC) + YEAR).isoformat()}
    task = await row(connection, (await api.post("/tasks", json=order)).json()["id"])
    assert abs(task["run_at"] - task["created_at"] - timedelta(seconds=100)) < timedelta(seconds=1)


async def test_null_counts_as_not_given(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    nothing = dict.fromkeys(("queue", "priority", "delay_seconds", "run_at", "timeout_seconds", "idempotent"))
    answer = await api.post("/tasks", json={"name": "add", "args": {"a": 1}, **nothing})
    task = await row(connection, answer.json()["id"])
    assert (task["queue"], task["priority"], task["timeout"], task["idempotent"]) == ("sums", 3, None, None)


async def test_what_does_not_fit_is_refused_by_its_place_and_nothing_is_written(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    for said, pointer in WRONG:
        answer = await api.post("/tasks", json={"name": "add", "args": {"a": 1}} | said)
        assert [each["pointer"] for each in problem(answer, 422, "invalid")["errors"]] == [pointer], said
    assert not await (await connection.execute("SELECT FROM fleet.task")).fetchall()


async def test_everything_wrong_is_listed_at_once(api: httpx.AsyncClient) -> None:
    order = {
        "name": "ship/order ~ü", "priority": 11, "colour": 1,
        "args": {"items": [{"product": "", "count": 0}, 7, {"count": 1}], "colour": "green", "by_name": {"x": {}}},
    }  # fmt: skip
    errors = (await api.post("/tasks", json=order)).json()["errors"]
    assert {each["pointer"] for each in errors} == {
        "#/priority", "#/colour", "#/args/items/0/product", "#/args/items/0/count", "#/args/items/1",
        "#/args/items/2/product", "#/args/colour", "#/args/by_name/x/product",
    }  # fmt: skip


async def test_a_place_that_may_hold_one_of_several_kinds_is_named_without_them(api: httpx.AsyncClient) -> None:
    order = {"name": "sort", "args": {"names": [], "limit": [1]}}
    errors = (await api.post("/tasks", json=order)).json()["errors"]
    assert {each["pointer"] for each in errors} == {"#/args/limit"}


async def test_no_more_is_listed_than_anybody_reads(api: httpx.AsyncClient) -> None:
    answer = await api.post("/tasks", json={"name": "sort", "args": {"names": [0] * 100_000}})
    assert answer.status_code == 422
    assert "100,000" in answer.json()["detail"]
    assert len(answer.content) < 1000


@pytest.mark.fault("Payloads", "an unknown task name")
async def test_an_unknown_task_is_told_which_there_are(api: httpx.AsyncClient) -> None:
    answer = await api.post("/tasks", json={"name": "ad", "args": {}})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "#/name"
    assert all(f"'{name}'" in error["detail"] for name in shop("postgresql://nobody@127.0.0.1/none").handlers)


async def test_tasks_of_other_apps_are_taken_where_that_is_allowed(app: Fleet, connection: AsyncConnection) -> None:
    async with client_of(asgi(app, token=None, allow_unknown=True)) as api:
        ours = await api.post("/tasks", json={"name": "add", "args": {"a": 1}, "queue": "elsewhere"})
        other = await api.post("/tasks", json={"name": "theirs", "args": {"x": [1.5, None]}, "queue": "far"})
        wrong = await api.post("/tasks", json={"name": "add", "args": {"a": "x"}})
        unprintable = await api.post("/tasks", json={"name": "a\nb"})
    assert (ours.status_code, ours.json()["queue"]) == (202, "elsewhere")
    assert (wrong.status_code, [each["pointer"] for each in wrong.json()["errors"]]) == (422, ["#/args/a"])
    assert (unprintable.status_code, unprintable.json()["errors"][0]["pointer"]) == (422, "#/name")
    task = await row(connection, other.json()["id"])
    assert (task["name"], task["queue"], task["args"], task["max_attempts"]) == ("theirs", "far", {"x": [1.5, None]}, 1)


async def test_an_app_without_tasks_cannot_be_served(database_url: str, settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="no task"):
        asgi(Fleet(database_url, settings=settings), token=None)


async def test_a_submitted_task_is_run_and_its_result_shown(app: Fleet, api: httpx.AsyncClient) -> None:
    task_id = await submitted(api, "add", a=40, b=2)
    async with app.worker():
        assert (await ended(api, task_id, State.SUCCEEDED))["result"] == 42


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(PARENT, PARENT), (PARENT.upper(), None), ("00-1-2-01", None), (f"{PARENT} x", None), ("", None)],
)
async def test_the_callers_span_is_kept_and_a_malformed_one_ignored(
    api: httpx.AsyncClient, connection: AsyncConnection, sent: str, kept: str | None
) -> None:
    answer = await api.post("/tasks", json={"name": "add", "args": {"a": 1}}, headers={"traceparent": sent})
    assert answer.status_code == 202
    assert (await row(connection, answer.json()["id"]))["traceparent"] == kept
