"""A PostgreSQL of one test file alone, which may be crashed, and the verdict on the load that ran meanwhile."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from fleet.config import Settings
from fleet.embedded import Server, temporary
from fleet.postgres import migrate
from fleet.postgres.database import AsyncConnection, Database
from tests.faults.steps import OPEN, REAPED
from tests.processes.crew import Sink, until, value
from tests.processes.load import Load
from tests.processes.oracle import Story, judge_all


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose commits are durable."""
    with temporary({"max_connections": "100"}) as server:
        yield server


@pytest.fixture
def database_url(server: Server) -> Iterator[str]:
    """A database of one test, made without a template: that would have to survive the crashes too."""
    name = f"fleet_{time.monotonic_ns()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    migrate.upgrade(Database(server.url_of(name), Settings(ttl=timedelta(seconds=2))))
    yield server.url_of(name)
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def log_of(server: Server) -> str:
    """What the server has written so far."""
    return Path(server.data, "server.log").read_text(encoding="utf-8", errors="replace")


async def judge_load(watcher: AsyncConnection, sink: Sink, submitted: Load) -> list[Story]:
    """Everything accepted is there and SUCCEEDED, nothing was charged for it, and nobody alive was reaped."""
    await until(watcher, OPEN, is_=lambda count: count == 0, seconds=90)
    told = await judge_all(watcher, sink)
    found = {story.task["id"]: story for story in told}
    assert submitted.accepted
    for task in submitted.accepted:
        story = found[task]
        assert story.task["state"] == "SUCCEEDED", story
        assert (story.task["losses"], story.task["failures"]) == (0, 0), story
        assert len(story.effects) == 1 if story.task["name"].endswith("once") else story.effects, story
    assert await value(watcher, REAPED) == 0
    return told
