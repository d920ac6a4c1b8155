"""A fleet under the roles of `fleet db grants`: a whole worker as the worker, the whole API as the API."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fleet import Context, Fleet, Settings
from fleet.events import DatabaseTrouble, Event, Events
from fleet.http.server import asgi
from fleet.postgres.scratch import new_database
from fleet.task import State
from tests.http.conftest import client_of
from tests.http.steps import ended, submitted
from tests.postgres.roles import House, house
from tests.support import eventually


@pytest.fixture(scope="module")
def roles(server_url: str, template: str) -> Iterator[House]:
    with new_database(server_url, template) as url, house(url) as lent:
        yield lent


def app_of(url: str, settings: Settings) -> Fleet:
    app = Fleet(url, settings=settings)

    @app.task(idempotent=True)
    async def double(number: int) -> int:
        return 2 * number

    @app.task(idempotent=True)
    async def submits(number: int, context: Context) -> str:
        refs = await app.submit_many(double, [{"number": number}] * 3)
        once = await double.options(idempotency_key=context.idempotency_key).submit(number=number)
        return f"{len(refs)} and {once.id}"

    @app.task
    def fails() -> None:
        raise ValueError("boom")

    return app


async def probe(api: httpx.AsyncClient, path: str) -> Any:
    answer = await api.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_each_does_its_whole_job_and_the_database_refuses_neither(roles: House, settings: Settings) -> None:
    told: list[Event] = []
    events = Events()
    events.subscribe(told.append)
    serving, working = app_of(roles.url_of("api"), settings), app_of(roles.url_of("worker"), settings)
    async with client_of(asgi(serving, token=None)) as api, working:
        async with working.worker(events=events) as worker:
            assert (await ended(api, await submitted(api, "double", number=4), State.SUCCEEDED))["result"] == 8
            await ended(api, await submitted(api, "submits", number=4), State.SUCCEEDED)
            await eventually(lambda: all_succeeded(api, "double", 5))
            dead = await submitted(api, "fails")
            await ended(api, dead, State.FAILED)
            assert (await api.post("/dead/requeue", json={"all": True})).json()["judged"]
            await eventually(lambda: attempts(api, dead, 2))
            assert (await api.post("/dead/discard", json={"all": True})).json()["judged"]
            assert (await api.post("/queues/default/pause")).status_code == 200
            waiting = await submitted(api, "double", number=1)
            assert (await api.post(f"/tasks/{waiting}/cancel")).status_code == 200
            assert (await api.post("/queues/default/resume")).status_code == 200
            (shown,) = (await probe(api, "/workers"))["items"]
            assert worker.lease is not None
            assert shown["id"] == str(worker.lease.id)
            for path in ("/readyz", "/queues", "/dead", "/tasks", f"/tasks/{dead}"):
                await probe(api, path)
        assert (await probe(api, "/workers"))["items"] == []
    assert [event for event in told if isinstance(event, DatabaseTrouble)] == []


async def all_succeeded(api: httpx.AsyncClient, name: str, count: int) -> bool:
    return len((await probe(api, f"/tasks?name={name}&state=SUCCEEDED"))["items"]) == count


async def attempts(api: httpx.AsyncClient, task: str, count: int) -> bool:
    found = await probe(api, f"/tasks/{task}")
    return bool(found["attempt"] == count and found["state"] == "FAILED")
