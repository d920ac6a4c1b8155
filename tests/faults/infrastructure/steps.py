"""The steps and the oracle that every outage of the database has in common."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import UUID

import psycopg
from psycopg import sql

from fleet import Fleet
from fleet.config import Settings
from fleet.errors import DatabaseUnreachable
from fleet.postgres import migrate
from fleet.postgres.database import AsyncConnection, Database
from tests.processes.crew import Process, Sink, until, value
from tests.processes.load import Load
from tests.processes.oracle import Story, judge_all

RESUME_SECONDS = 10.0  # L5
LEASES = "SELECT array_agg(id ORDER BY id) FROM fleet.lease WHERE state = 'LIVE'"
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING')"


def migrated(url: str) -> str:
    """Create the tables in a database that exists."""
    migrate.upgrade(Database(url, Settings(ttl=timedelta(seconds=30))))
    return url


def create_database(url: str, name: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name))
        )


async def all_renewed(watcher: AsyncConnection, count: int, seconds: float = RESUME_SECONDS) -> float:
    """Return when so many leases have been renewed since this call began, and after how many seconds."""
    began, now = time.monotonic(), await value(watcher, "SELECT clock_timestamp()")
    renewed = "SELECT count(*) FROM fleet.lease WHERE state = 'LIVE' AND renewed_at > %s"
    await until(watcher, renewed, now, is_=lambda found: found == count, seconds=seconds)
    return time.monotonic() - began


async def nothing_lost(watcher: AsyncConnection, sink: Sink, submitted: Load) -> list[Story]:
    """Everything accepted is there and SUCCEEDED, nothing was charged for it, and no lease of a living worker was ended."""
    await until(watcher, OPEN, is_=lambda count: count == 0, seconds=60)
    told = await judge_all(watcher, sink)
    found = {story.task["id"]: story for story in told}
    for task in submitted.accepted:
        assert task in found, f"{task} was accepted, and is gone"
        story = found[task]
        assert story.task["state"] == "SUCCEEDED", story
        assert (story.task["losses"], story.task["failures"]) == (0, 0), story
        assert len(story.effects) == 1 if story.task["name"].endswith("once") else story.effects, story
    assert await value(watcher, "SELECT count(*) FROM fleet.lease WHERE state = 'REAPED'") == 0
    return told


async def present(watcher: AsyncConnection, tasks: list[UUID]) -> list[bool]:
    """Which of these tasks are in the table, in their order."""
    cursor = await watcher.execute("SELECT id FROM fleet.task WHERE id = ANY (%s)", (tasks,))
    found = {row[0] for row in await cursor.fetchall()}
    return [task in found for task in tasks]


def alive(workers: list[Process]) -> bool:
    """Whether these processes are the same as before: nobody had to restart one."""
    return all(worker.popen.poll() is None for worker in workers)


@asynccontextmanager
async def submitting(app: Fleet, *, milliseconds: int) -> AsyncIterator[Load]:
    """Submit to the workers through the client, over any outage, the one half repeatable and the other not."""

    @app.task(idempotent=True)
    async def quick(milliseconds: float) -> None: ...

    @app.task
    async def quick_once(milliseconds: float) -> None: ...

    submitted = Load()

    async def submit() -> None:
        for number in itertools.count():
            with suppress(DatabaseUnreachable):
                chosen = quick if number % 2 else quick_once
                submitted.accepted.append((await chosen.submit(milliseconds)).id)
            await asyncio.sleep(0.004)

    running = asyncio.create_task(submit())
    try:
        yield submitted
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if not running.cancelled():
        running.result()
