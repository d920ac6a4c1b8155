"""/queues."""

from datetime import timedelta
from urllib.parse import quote

import httpx
import pytest

from fleet import Fleet
from fleet.postgres import queue
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.http.steps import ended, problem, submitted
from tests.postgres.steps import MINUTE
from tests.support import new_lease, submit

NAMES = [
    "default",
    "a/b",
    "/",
    "a b",
    "100%",
    "a%2Fb",
    "é\U0001f600",
    "a/pause",
    "resume",
    "?x=1&y#z",
    "a+b",
    "x" * 200,
]


async def queues(api: httpx.AsyncClient) -> dict[str, dict[str, object]]:
    return {each["name"]: each for each in (await api.get("/queues")).json()["items"]}


async def test_queues_show_who_serves_them_and_what_waits(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    assert await queues(api) == {}
    await new_lease(connection, ttl=MINUTE, queues=["served", "both"])
    for name in ("both", "both", "waiting"):
        await submit(connection, queue=name)
    assert await queues(api) == {
        name: {"name": name, "paused": False, "workers": workers, "queued": queued}
        for name, workers, queued in [("served", 1, 0), ("both", 1, 2), ("waiting", 0, 1)]
    }


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
async def test_a_queue_of_any_name_is_paused_and_resumed(
    api: httpx.AsyncClient, connection: AsyncConnection, name: str
) -> None:
    await submit(connection, queue=name)
    path = f"/queues/{quote(name, safe='')}"
    paused = {"name": name, "paused": True, "changed": True}
    assert (await api.post(f"{path}/pause")).json() == paused
    assert (await api.post(f"{path}/pause")).json() == paused | {"changed": False}
    assert {each: told["paused"] for each, told in (await queues(api)).items()} == {name: True}
    assert (await api.post(f"{path}/resume")).json() == {"name": name, "paused": False, "changed": True}
    assert (await api.post(f"{path}/resume")).json() == {"name": name, "paused": False, "changed": False}
    assert (await queues(api))[name]["paused"] is False


async def test_a_name_may_be_written_with_its_slash(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    await submit(connection, queue="a/b")
    assert (await api.post("/queues/a/b/pause")).json()["name"] == "a/b"


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_an_unknown_queue_is_told_which_there_are(
    api: httpx.AsyncClient, connection: AsyncConnection, verb: str
) -> None:
    await submit(connection, queue="default")
    told = problem(await api.post(f"/queues/mistyped/{verb}"), 404, "not_found")
    assert "default" in told["detail"]
    assert set(await queues(api)) == {"default"}


@pytest.mark.parametrize("path", ["/queues//pause", f"/queues/{'x' * 201}/pause", "/queues/%00/pause"])
async def test_what_no_queue_can_be_called_is_refused(api: httpx.AsyncClient, path: str) -> None:
    told = problem(await api.post(path), 422, "invalid")
    assert [each["parameter"] for each in told["errors"]] == ["name"]


async def test_nobody_starts_a_task_of_a_paused_queue_before_it_is_resumed(app: Fleet, api: httpx.AsyncClient) -> None:
    async with app.worker():
        await ended(api, await submitted(api, "add", a=1), State.SUCCEEDED)  # so that the queue is known
        await api.post("/queues/sums/pause")
        waiting = await submitted(api, "add", a=2)
        await ended(api, await submitted(api, "echo"), State.SUCCEEDED)
        assert (await api.get(f"/tasks/{waiting}")).json()["state"] == "QUEUED"
        await api.post("/queues/sums/resume")
        await ended(api, waiting, State.SUCCEEDED)


async def test_a_queue_with_a_rule_of_its_own_says_how_long_it_keeps(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    await new_lease(connection, ttl=MINUTE, queues=["kept"])
    assert "retention_seconds" not in (await queues(api))["kept"]
    await queue.retain(connection, "kept", timedelta(days=30), "ann")
    assert (await queues(api))["kept"]["retention_seconds"] == 30 * 86_400
