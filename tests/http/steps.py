"""The steps that tests of the API are made of."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx

from fleet.lease import Lease
from fleet.postgres.database import AsyncConnection
from fleet.task import Errored, FailureCode, State
from tests.postgres.steps import MINUTE, settle_one, take
from tests.support import eventually, new_lease


async def submitted(api: httpx.AsyncClient, name: str, **args: Any) -> str:
    """Submit a task, and return its id."""
    answer = await api.post("/tasks", json={"name": name, "args": args})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def ended(api: httpx.AsyncClient, task_id: str | UUID, state: State) -> dict[str, Any]:
    """Wait until the task is there, and return what is shown of it."""

    async def probe() -> list[dict[str, Any]]:
        found = (await api.get(f"/tasks/{task_id}")).json()
        return [found] if found["state"] == state else []

    return (await eventually(probe))[0]


async def failed(
    connection: AsyncConnection,
    names: Sequence[str] = ("work",),
    *,
    queue: str = "default",
    code: FailureCode = FailureCode.HANDLER_ERROR,
    lease: Lease | None = None,
) -> list[UUID]:
    """Make dead letters with fleet's own verbs."""
    lease = lease or await new_lease(connection, ttl=MINUTE, queues=[queue])
    found = []
    for name in names:
        task = await take(connection, lease, name=name, queue=queue)
        await settle_one(connection, task, Errored(code, "boom", None))
        found.append(task.id)
    return found


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return a problem document, which must be this one."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    told: dict[str, Any] = answer.json()
    assert (answer.status_code, told["status"], told["code"]) == (status, status, code), answer.text
    assert told["title"]
    assert told["detail"]
    return told
