"""`/queues`: who serves them, how many tasks wait, and whether they are paused."""

from pydantic import Field

from fleet.http.api import Api
from fleet.http.callers import Caller
from fleet.http.view import Given, Text, View
from fleet.postgres import inspect, queue
from fleet.postgres.inspect import QUEUED_MAX


class QueueView(View):
    """One queue."""

    name: str
    paused: bool
    workers: int = Field(description="With a good lease, that serve it.")
    queued: int = Field(description=f"Tasks that wait or are not due yet, counted up to {QUEUED_MAX:,}.")
    retention_seconds: float | None = Field(default=None, description="Where the queue has a rule of its own.")


class Queues(View):
    """All queues that a worker has served or that tasks wait in."""

    items: list[QueueView]


class QueuePath(Given):
    """Which queue."""

    name: Text


class Switched(View):
    """A queue as it stands now; `changed`: by this request."""

    name: str
    paused: bool
    changed: bool


async def list_(api: Api) -> Queues:
    """List the queues."""
    return Queues(items=[QueueView.of(row) for row in await api.ask(inspect.queues())])


async def pause(api: Api, caller: Caller, path: QueuePath) -> Switched:
    """Let nobody start tasks of this queue. What runs goes on."""
    changed = await api.act(lambda connection: queue.pause(connection, path.name, caller.name))
    return Switched(name=path.name, paused=True, changed=changed)


async def resume(api: Api, caller: Caller, path: QueuePath) -> Switched:
    """Let tasks of this queue be started again."""
    changed = await api.act(lambda connection: queue.resume(connection, path.name, caller.name))
    return Switched(name=path.name, paused=False, changed=changed)
