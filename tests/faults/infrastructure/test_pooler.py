"""PgBouncer in transaction mode between the fleet and its server: it restarts, and the server behind it does."""

import asyncio
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest

from fleet import Fleet, Settings
from fleet.doctor import Finding, Verdict, examine
from fleet.postgres.database import AsyncConnection, Database
from tests.conformance.cluster import Cluster
from tests.conformance.pooler import SIZE, Pooler
from tests.conformance.programs import binaries
from tests.conformance.room import Room, room
from tests.faults.infrastructure.steps import (
    LEASES,
    alive,
    all_renewed,
    create_database,
    migrated,
    nothing_lost,
    submitting,
)  # fmt: skip
from tests.processes.crew import Crew, Sink, until, value
from tests.processes.load import Load

WORKERS = 3
SETTINGS = Settings(ttl=timedelta(seconds=2), prepared_statements=False)
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def cluster(lent: Room) -> Cluster:
    return Cluster(lent, binaries("18"), {"max_connections": "60", "shared_buffers": "32MB"}, name="server").start()


@pytest.fixture
def lent() -> Iterator[Room]:
    with room() as lent:
        yield lent


@pytest.fixture
def pooler(lent: Room, cluster: Cluster) -> Pooler:
    return Pooler(lent, cluster.url).start()


@pytest.fixture
def database_url(cluster: Cluster) -> str:
    """The server's own address: the test looks on from beside the pooler."""
    create_database(cluster.url, "fleet")
    return migrated(cluster.url_of("fleet"))


@pytest.fixture
async def crew(crew: Crew, pooler: Pooler) -> Crew:
    """Every worker goes through the pooler."""
    crew._url = pooler.url_of("fleet")
    return crew


async def is_shared(watcher: AsyncConnection, pooler: Pooler) -> None:
    """Many sessions of ours have fewer of the server's: they do share them."""
    clients = [each for each in pooler.ask("SHOW CLIENTS") if each["database"] == "fleet"]
    servers = await value(watcher, "SELECT count(*) FROM pg_stat_activity WHERE datname = 'fleet'")
    assert len(clients) >= 3 * WORKERS
    assert servers - 1 <= min(SIZE, len(clients) - 1)
    assert {each["pool_mode"] for each in pooler.ask("SHOW POOLS") if each["database"] == "fleet"} == {"transaction"}


async def goes_on(watcher: AsyncConnection, submitted: Load) -> None:
    await all_renewed(watcher, WORKERS)
    await submitted.more(100)


@pytest.mark.fault("Database", "PgBouncer in transaction mode, its restart")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
async def test_a_restart_of_the_pooler_under_load_loses_nothing_and_restarts_nobody(
    crew: Crew, pooler: Pooler, watcher: AsyncConnection, sink: Sink, number: signal.Signals
) -> None:
    workers = await crew.workers(WORKERS, slots=8, prepared_statements="off")
    leases = await value(watcher, LEASES)
    async with Fleet(pooler.url_of("fleet"), settings=SETTINGS) as app, submitting(app, milliseconds=20) as submitted:
        await submitted.more(100)
        await is_shared(watcher, pooler)
        for _ in range(2):
            await asyncio.to_thread(pooler.stop, number)
            await value(watcher, "SELECT pg_sleep(1)")
            pooler.start()
            await goes_on(watcher, submitted)
    await nothing_lost(watcher, sink, submitted)
    assert await value(watcher, LEASES) == leases
    assert alive(workers)


@pytest.mark.fault("Database", "the server behind PgBouncer restarts")
async def test_a_crash_of_the_server_behind_the_pooler_loses_nothing_and_restarts_nobody(
    crew: Crew, pooler: Pooler, cluster: Cluster, database_url: str, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(WORKERS, slots=8, prepared_statements="off")
    leases = await value(watcher, LEASES)
    async with Fleet(pooler.url_of("fleet"), settings=SETTINGS) as app, submitting(app, milliseconds=20) as submitted:
        await submitted.more(100)
        await is_shared(watcher, pooler)
        cluster.kill()
        cluster.start()
        async with await AsyncConnection.connect(database_url, autocommit=True) as again:
            await goes_on(again, submitted)
    async with await AsyncConnection.connect(database_url, autocommit=True) as again:
        await nothing_lost(again, sink, submitted)
        assert await value(again, LEASES) == leases
    assert alive(workers)


IDLE = "SELECT count(*) FROM fleet.lease WHERE idle"
WAITED = "SELECT extract(epoch FROM started_at - created_at)::float8 FROM fleet.task WHERE id = %s"


async def test_a_worker_behind_the_pooler_is_called_where_it_has_a_way_of_its_own_to_listen(
    crew: Crew, pooler: Pooler, cluster: Cluster, watcher: AsyncConnection
) -> None:
    direct = cluster.url_of("fleet")
    (worker,) = await crew.workers(
        1, ttl="6s", prepared_statements="off", poll="10s", poll_listening="10s", listen_url=direct
    )
    async with Fleet(pooler.url_of("fleet"), settings=SETTINGS) as app:

        @app.task(idempotent=True)
        async def quick(milliseconds: float) -> None: ...

        for _ in range(6):
            await until(watcher, IDLE, is_=lambda count: count == 1)
            ref = await quick.submit(1)
            await ref.result(timeout=30)
            assert await value(watcher, WAITED, ref.id) < 2, "by polling it would be 5 s on average"
    assert alive([worker])


async def test_the_doctor_tells_whether_notifications_come_through(pooler: Pooler, database_url: str) -> None:
    def told(listen_url: str | None) -> Finding:
        database = Database(pooler.url_of("fleet"), SETTINGS, listen_url=listen_url)
        (found,) = [each for each in examine(database) if each.check == "notifications"]
        return found

    assert told(database_url).verdict is Verdict.OK
    without = told(None)
    assert without.verdict is Verdict.WARNING
    assert "FLEET_LISTEN_URL" in without.evidence
