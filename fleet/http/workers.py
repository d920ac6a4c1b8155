"""`/workers`: who runs, and for how long each lease still holds."""

from uuid import UUID

from pydantic import AwareDatetime, Field

from fleet.http.api import Api
from fleet.http.view import Flag, Page, Paged, View, page
from fleet.postgres import inspect


class WorkerView(View):
    """One lease: the right of one worker process to hold tasks."""

    id: UUID = Field(description="Of the lease.")
    worker: str = Field(description="What the process is called.")
    host: str
    pid: int
    version: str
    queues: list[str]
    slots: int
    running: int = Field(description="Slots in use.")
    state: str = Field(json_schema_extra={"enum": ["LIVE", "DRAINING", "RELEASED", "REAPED"]})
    granted_at: AwareDatetime
    renewed_at: AwareDatetime
    expires_in_seconds: float = Field(description="By the database's clock; negative once it has expired.")


class WorkerFilter(Paged):
    """Which workers."""

    all: Flag = Field(default=False, description="Those whose lease is over, too.")


async def list_(api: Api, query: WorkerFilter) -> Page[WorkerView]:
    """List workers, the youngest first."""
    rows = await api.ask(inspect.workers(every=query.all, before=query.cursor, limit=query.limit + 1))
    return Page[WorkerView](**page(WorkerView, rows, query.limit))
