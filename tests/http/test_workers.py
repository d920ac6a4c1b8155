"""/workers."""

from datetime import timedelta

import httpx

from fleet import Fleet
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.http.steps import ended, problem, submitted
from tests.postgres.steps import MINUTE, end_lease, take
from tests.support import expire_lease, new_lease


async def test_a_worker_is_shown_with_what_it_does(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    lease = await new_lease(connection, worker="w-1", ttl=MINUTE, queues=["default", "other"])
    for _ in range(2):
        await take(connection, lease)
    (worker,) = (await api.get("/workers")).json()["items"]
    assert 0 < worker.pop("expires_in_seconds") <= 60
    assert worker.pop("granted_at") == worker.pop("renewed_at")
    assert worker == {
        "id": str(lease.id), "worker": "w-1", "host": "host", "pid": 1, "version": "test", "queues": ["default", "other"],
        "slots": 8, "running": 2, "state": "LIVE",
    }  # fmt: skip


async def test_a_lease_that_ran_out_is_shown_with_since_when(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    await expire_lease(connection, await new_lease(connection, ttl=timedelta(seconds=5)))
    (worker,) = (await api.get("/workers")).json()["items"]
    assert (worker["state"], worker["expires_in_seconds"] <= 0) == ("LIVE", True)


async def test_leases_that_are_over_are_shown_where_all_are_asked_for(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    await end_lease(connection, await new_lease(connection, worker="old", ttl=MINUTE))
    await new_lease(connection, worker="young", ttl=MINUTE)

    async def shown(query: str) -> list[tuple[str, str]]:
        return [(each["worker"], each["state"]) for each in (await api.get(f"/workers{query}")).json()["items"]]

    assert await shown("") == await shown("?all=false") == [("young", "LIVE")]
    assert await shown("?all=true") == [("young", "LIVE"), ("old", "REAPED")]
    for wrong in ("all=1", "all=yes", "all=", "all=True", "all=true&all=true"):
        problem(await api.get(f"/workers?{wrong}"), 422, "invalid")


async def test_pages_show_each_worker_once(api: httpx.AsyncClient, connection: AsyncConnection) -> None:
    there = [str((await new_lease(connection, ttl=MINUTE)).id) for _ in range(5)]
    first = (await api.get("/workers?limit=3")).json()
    second = (await api.get(f"/workers?limit=3&cursor={first['next']}")).json()
    assert [each["id"] for each in first["items"] + second["items"]] == there[::-1]
    assert "next" not in second


async def test_a_worker_of_this_process_is_there_while_it_runs(app: Fleet, api: httpx.AsyncClient) -> None:
    async with app.worker(name="w-1"):
        await ended(api, await submitted(api, "echo"), State.SUCCEEDED)
        (worker,) = (await api.get("/workers")).json()["items"]
    assert (worker["worker"], worker["queues"], worker["slots"]) == ("w-1", ["default", "sums"], 8)
    assert (await api.get("/workers")).json() == {"items": []}
    assert [each["state"] for each in (await api.get("/workers?all=true")).json()["items"]] == ["RELEASED"]
