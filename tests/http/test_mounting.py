"""The API inside a program of somebody else."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import fastapi
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from fleet import Fleet
from fleet.http.server import asgi
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.http.steps import problem
from tests.support import eventually


def in_starlette(api: Starlette) -> Starlette:
    return Starlette(routes=[Mount("/fleet", api)])


def in_fastapi(api: Starlette) -> Starlette:
    program = fastapi.FastAPI()

    @program.get("/own")
    async def own() -> str:
        return "own"

    program.mount("/fleet", api)
    return program


def in_two(api: Starlette) -> Starlette:
    return Starlette(routes=[Mount("/a", Starlette(routes=[Mount("/b", Starlette(routes=[Mount("/fleet", api)]))]))])


@asynccontextmanager
async def client(program: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Lend a client of a program whose lifespan is never run."""
    transport = httpx.ASGITransport(program)
    async with httpx.AsyncClient(transport=transport, base_url="http://outer.test") as client:
        yield client


async def sessions(connection: AsyncConnection) -> int:
    found = await connection.execute(
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    return len(await found.fetchall())


@pytest.mark.parametrize(
    ("mount", "root"),
    [(in_starlette, "/fleet"), (in_fastapi, "/fleet"), (in_two, "/a/b/fleet")],
    ids=["starlette", "fastapi", "two"],
)
async def test_it_works_under_any_path_without_the_lifespan_of_the_program_around_it(
    app: Fleet, connection: AsyncConnection, mount: Callable[[Starlette], Starlette], root: str
) -> None:
    api = asgi(app, token=None)
    async with api.router.lifespan_context(api), client(mount(api)) as outer:
        answer = await outer.post(f"{root}/tasks", json={"name": "add", "args": {"a": 1, "b": 2}})
        assert answer.status_code == 202
        assert answer.headers["Location"] == f"{root}/tasks/{answer.json()['id']}"

        async def shown() -> bool:
            return bool((await outer.get(answer.headers["Location"])).json()["state"] == State.SUCCEEDED)

        async with app.worker():
            await eventually(shown)
        assert (await outer.post(f"{root}/queues/sums/pause")).status_code == 200
        for path in ("/livez", "/readyz", "/queues", "/openapi.json"):
            assert (await outer.get(f"{root}{path}")).status_code == 200, path
        problem(await outer.get(f"{root}/nowhere"), 404, "not_found")
        problem(await outer.delete(f"{root}/tasks"), 405, "method_not_allowed")
        if mount is in_fastapi:
            assert (await outer.get("/own")).json() == "own"
            assert (await outer.get("/fleet/own")).status_code == 404
        assert await sessions(connection) > 0

    async def nobody() -> bool:
        return await sessions(connection) == 0

    await eventually(nobody)


async def test_it_is_closed_with_the_program_around_it_and_can_be_opened_again(
    app: Fleet, connection: AsyncConnection
) -> None:
    api = asgi(app, token=None)

    async def nobody() -> bool:
        return await sessions(connection) == 0

    for _ in range(2):
        async with api.router.lifespan_context(api), client(in_starlette(api)) as outer:
            assert (await outer.post("/fleet/tasks", json={"name": "echo"})).status_code == 202
            assert len((await outer.get("/fleet/tasks")).json()["items"]) > 0
        await eventually(nobody)


async def test_the_document_says_where_it_is_mounted(app: Fleet) -> None:
    api = asgi(app, token=None)
    async with client(in_starlette(api)) as outer:
        told: dict[str, Any] = json.loads((await outer.get("/fleet/openapi.json")).content)
    assert told["servers"] == [{"url": "/fleet"}]
