"""Replicas behind PostgreSQL 15 in a container: one replica is killed, then the database itself, without warning."""

import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from testcontainers.community.postgres import PostgresContainer

from fleet.config import Settings
from fleet.postgres import migrate
from fleet.postgres.database import AsyncConnection, Database
from tests.processes.crew import Crew, terminal, value
from tests.processes.stage import Actor, Stage, open_stage
from tests.support import TTL, eventually, submit

pytestmark = pytest.mark.containers


@pytest.fixture(scope="module")
def container() -> Iterator[PostgresContainer]:
    """A server whose port stays the same when it is started again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with PostgresContainer("postgres:15", driver=None).with_bind_ports(5432, port) as running:
        migrate.upgrade(Database(running.get_connection_url(), Settings()))
        yield running


@pytest.fixture
async def looking(container: PostgresContainer) -> AsyncIterator[AsyncConnection]:
    async with await connect(container) as connection:
        yield connection


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="crew-") as folder:
        async with open_stage(Path(folder) / "stage") as opened:
            yield opened


@pytest.fixture
def crew(container: PostgresContainer, looking: AsyncConnection, stage: Stage) -> Iterator[Crew]:
    crew = Crew(container.get_connection_url(), stage.path.parent, looking, stage.path)
    yield crew
    crew.clean_up()


async def test_a_killed_replica_loses_nothing_and_repeats_only_what_may_be(
    crew: Crew, stage: Stage, looking: AsyncConnection
) -> None:
    victim = await crew.worker(slots=2)
    repeatable = await submit(looking, name="act")
    once = await submit(looking, name="act_once", max_attempts=1)
    for task_id in (repeatable, once):
        await stage.arrival(task_id)
    await crew.workers(2, slots=2)
    victim.kill()
    second = await stage.arrival(repeatable, attempt=2)
    second.tell("return 7")
    assert await terminal(looking, repeatable) == "SUCCEEDED"
    assert await terminal(looking, once) == "FAILED"
    assert await value(looking, "SELECT failure_code FROM fleet.task WHERE id = %s", once) == "lease_expired"
    assert stage.starts(once) == 1


async def test_a_killed_database_costs_no_worker_its_lease(
    container: PostgresContainer, crew: Crew, stage: Stage, looking: AsyncConnection
) -> None:
    await crew.workers(3)
    tasks = [await submit(looking, name=name, max_attempts=3) for name in ("act", "act_once", "act_once")]
    actors = [await stage.arrival(task_id) for task_id in tasks]
    reaped = await value(looking, "SELECT count(*) FROM fleet.lease WHERE state = 'REAPED'")
    server = container.get_wrapped_container()
    server.kill(signal="SIGKILL")
    await _pass(TTL.total_seconds() * 2)
    actors[1].tell("return 1")
    server.start()
    again = await _connected(container)
    crew.start_looking(again)
    async with again:
        await _all_go_on(again, stage, tasks, actors)
        assert await value(again, "SELECT count(*) FROM fleet.lease WHERE state = 'REAPED'") == reaped


async def _all_go_on(connection: AsyncConnection, stage: Stage, tasks: list[UUID], actors: list[Actor]) -> None:
    """What may not be repeated has gone on and is welcome; what may be was stopped, handed back and started again."""
    assert await terminal(connection, tasks[1]) == "SUCCEEDED"
    actors[2].tell("return 2")
    assert await terminal(connection, tasks[2]) == "SUCCEEDED"
    (await stage.arrival(tasks[0], attempt=2)).tell("return 0")
    assert await terminal(connection, tasks[0]) == "SUCCEEDED"


async def connect(container: PostgresContainer) -> AsyncConnection:
    return await Database(container.get_connection_url(), Settings()).connect("test")


async def _pass(seconds: float) -> None:
    """Keep the database away for so long: the length of the outage is what is tested."""
    with socket.socket() as silent:
        silent.settimeout(seconds)
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(TimeoutError):
            silent.accept()


async def _connected(container: PostgresContainer) -> AsyncConnection:
    async def probe() -> AsyncConnection | None:
        try:
            return await connect(container)
        except psycopg.OperationalError:
            return None

    connection = await eventually(probe)
    assert connection is not None
    return connection
