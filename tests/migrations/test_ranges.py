"""No schema is changed under a worker that does not work with the new one, and no code writes where it does not fit."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from uuid_utils.compat import uuid7

from fleet import Fleet, schema
from fleet.app import Task
from fleet.errors import SchemaMismatch, UpgradeRefused
from fleet.lease import Lease
from fleet.postgres import heartbeat, migrate
from fleet.postgres.database import AsyncConnection, Database
from tests.migrations.test_upgrade import with_a_second_revision
from tests.support import TTL, blocked, eventually, execute, expire_lease, new_lease, pid_of

REVISION = "SELECT version_num FROM fleet.fleet_alembic_version"
EXTRA = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'fleet.task'::regclass AND attname = 'extra'"
ADD = "op.execute('ALTER TABLE fleet.task ADD COLUMN extra text')"
INDEX = """
    with op.get_context().autocommit_block():
        op.execute('DROP INDEX CONCURRENTLY IF EXISTS fleet.task_extra')
        op.execute('CREATE INDEX CONCURRENTLY task_extra ON fleet.task (name)')
"""
BUILDING = """
SELECT FROM pg_stat_activity
WHERE datname = current_database() AND query ~ '^CREATE INDEX CONCURRENTLY' AND wait_event_type = 'Lock'
"""
OLD, NEW = (1, 1), (1, 2)
IDENTITY = heartbeat.Identity("worker-1", "host-1", 4711, "1.2.3", ("elsewhere",), 8)


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This code brings schema 2, and the database has schema 1."""
    with_a_second_revision(tmp_path, monkeypatch, ADD)


async def revision(connection: AsyncConnection) -> tuple[Any, int]:
    """The schema's revision, and whether it has what the second one adds."""
    return (await execute(connection, REVISION))[0][0], (await execute(connection, EXTRA))[0][0]


async def upgrade(database: Database, *, force: bool = False) -> list[migrate.Misfit]:
    return await asyncio.to_thread(migrate.upgrade, database, force=force)


async def set_revision(connection: AsyncConnection, name: str) -> None:
    await execute(connection, "UPDATE fleet.fleet_alembic_version SET version_num = :name", name=name)


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("state", ["LIVE", "DRAINING"])
async def test_a_worker_that_does_not_work_with_the_new_schema_keeps_it_from_being_made(
    database: Database, connection: AsyncConnection, state: str
) -> None:
    await new_lease(connection, worker="new", schemas=NEW)
    old = await new_lease(connection, worker="old", schemas=OLD)
    await execute(connection, "UPDATE fleet.lease SET state = :state WHERE id = :id", state=state, id=old.id)

    with pytest.raises(
        UpgradeRefused, match=r"schema 2 .* 1 of the workers .* old on host .*schemas 1 to 1.*drain"
    ) as caught:
        await upgrade(database)

    assert "new on host" not in str(caught.value)
    assert await revision(connection) == ("0001", 0)


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("end", ["expired", "RELEASED", "REAPED"])
async def test_a_worker_whose_lease_is_over_keeps_no_schema_from_being_made(
    database: Database, connection: AsyncConnection, end: str
) -> None:
    lease = await new_lease(connection, schemas=OLD)
    if end == "expired":
        await expire_lease(connection, lease)
    else:
        await execute(connection, "UPDATE fleet.lease SET state = :end", end=end)
    assert await upgrade(database) == []
    assert await revision(connection) == ("0002", 1)


@pytest.mark.usefixtures("later")
async def test_with_force_it_is_made_all_the_same_and_the_workers_are_named(
    database: Database, connection: AsyncConnection
) -> None:
    lease = await new_lease(connection, worker="old", schemas=OLD)
    await new_lease(connection, worker="new", schemas=NEW)
    over = await upgrade(database, force=True)
    assert [(each.id, str(each)) for each in over] == [(lease.id, "old on host (pgfleet test, schemas 1 to 1)")]
    assert await revision(connection) == ("0002", 1)


@pytest.mark.usefixtures("later")
async def test_many_workers_in_the_way_are_counted_and_some_are_named(
    database: Database, connection: AsyncConnection
) -> None:
    for _ in range(12):
        await new_lease(connection, schemas=OLD)
    with pytest.raises(UpgradeRefused, match=r"12 of the workers .* and 2 more\."):
        await upgrade(database)


@pytest.mark.usefixtures("later")
async def test_an_upgrade_waits_for_a_worker_that_is_just_registering_and_sees_it(
    database: Database, connection: AsyncConnection, other: AsyncConnection
) -> None:
    async with connection.transaction():
        await new_lease(connection, worker="just in time", schemas=OLD)
        running = asyncio.create_task(upgrade(database))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) @> ARRAY[:pid::int]"

        async def waits() -> bool:
            return bool((await execute(other, waiting, pid=pid_of(connection)))[0][0])

        await eventually(waits)
    with pytest.raises(UpgradeRefused, match="just in time"):
        await running
    assert await revision(connection) == ("0001", 0)


async def test_a_worker_that_registers_while_an_upgrade_is_committed_waits_and_is_refused(
    database: Database, connection: AsyncConnection, other: AsyncConnection
) -> None:
    with database.connect_sync("heartbeat") as registering, ThreadPoolExecutor(1) as pool:
        async with connection.transaction():
            await execute(connection, "SELECT pg_advisory_xact_lock(:lock::bigint)", lock=migrate.REGISTERING)
            await set_revision(connection, "0003")
            running = pool.submit(heartbeat.register, registering, Lease(uuid7(), "worker", TTL), IDENTITY)
            await blocked(other, pid_of(registering))
        with pytest.raises(SchemaMismatch, match=r"at revision 0003, which .* \(schemas 1 to 2\) does not know"):
            await asyncio.wrap_future(running)
    for table in ("lease", "queue"):
        assert await execute(connection, f"SELECT FROM fleet.{table}") == []


@pytest.mark.parametrize(
    ("name", "fits"), [("0001", False), ("0002", True), ("0003", True), ("0004", False), ("later", False)]
)
async def test_only_a_worker_that_works_with_the_schema_gets_a_lease_and_the_lease_says_with_which(
    database: Database, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch, name: str, fits: bool
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_MIN", 2)
    monkeypatch.setattr(schema, "SCHEMA_MAX", 3)
    await set_revision(connection, name)
    with database.connect_sync("heartbeat") as registering:
        if fits:
            heartbeat.register(registering, Lease(uuid7(), "worker", TTL), IDENTITY)
        else:
            with pytest.raises(SchemaMismatch):
                heartbeat.register(registering, Lease(uuid7(), "worker", TTL), IDENTITY)
    assert await execute(connection, "SELECT schema_min, schema_max FROM fleet.lease") == ([(2, 3)] if fits else [])
    assert await execute(connection, "SELECT name FROM fleet.queue") == ([("elsewhere",)] if fits else [])


async def test_registrations_do_not_wait_for_each_other(database: Database, connection: AsyncConnection) -> None:
    async with connection.transaction():
        await new_lease(connection)
        with database.connect_sync("heartbeat") as registering:
            heartbeat.register(registering, Lease(uuid7(), "worker", TTL), IDENTITY)


@pytest.fixture
def app(database_url: str) -> Fleet:
    return Fleet(database_url)


@pytest.fixture
def work(app: Fleet) -> Task[[], None]:
    @app.task
    def work() -> None: ...

    return work


@pytest.mark.parametrize("name", ["later", "0003"])
async def test_no_submitter_writes_to_a_schema_that_it_does_not_work_with(
    app: Fleet, work: Task[[], None], connection: AsyncConnection, database_url: str, name: str
) -> None:
    await set_revision(connection, name)
    async with app:
        with pytest.raises(SchemaMismatch, match=r"Upgrade pgfleet"):
            await work.submit()
        with pytest.raises(SchemaMismatch, match=r"Upgrade pgfleet"):
            await asyncio.to_thread(work.submit_sync)
        with pytest.raises(SchemaMismatch, match=r"Upgrade pgfleet"):
            await app.submit_many(work, [{}])
        async with await psycopg.AsyncConnection.connect(database_url) as tx:
            with pytest.raises(SchemaMismatch, match=r"Upgrade pgfleet"):
                await work.options(tx=tx).submit()
        with psycopg.connect(database_url) as tx, pytest.raises(SchemaMismatch, match=r"Upgrade pgfleet"):
            work.options(tx=tx).submit_sync()
    assert await execute(connection, "SELECT FROM fleet.task") == []


async def test_a_submitter_is_refused_again_and_again_and_goes_on_when_the_schema_fits(
    app: Fleet, work: Task[[], None], connection: AsyncConnection
) -> None:
    await set_revision(connection, "later")
    async with app:
        for _ in range(2):
            with pytest.raises(SchemaMismatch):
                await work.submit()
        await set_revision(connection, "0001")
        ref = await work.submit()
    assert await execute(connection, "SELECT id FROM fleet.task") == [(ref.id,)]


async def test_a_submitter_asks_for_the_schema_once(
    app: Fleet, work: Task[[], None], connection: AsyncConnection, database_url: str
) -> None:
    async with app, await psycopg.AsyncConnection.connect(database_url) as tx:
        await work.submit()
        await set_revision(connection, "later")
        await work.submit()
        await asyncio.to_thread(work.submit_sync)
        await work.options(tx=tx).submit()
        await tx.commit()
    assert len(await execute(connection, "SELECT FROM fleet.task")) == 4


async def test_a_revision_can_build_its_index_without_a_transaction_and_is_judged_all_the_same(
    database: Database, connection: AsyncConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_second_revision(tmp_path, monkeypatch, INDEX)
    lease = await new_lease(connection, schemas=OLD)
    with pytest.raises(UpgradeRefused):
        await upgrade(database)
    await expire_lease(connection, lease)
    await upgrade(database)
    assert await revision(connection) == ("0002", 0)
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'fleet.task_extra'::regclass"
    assert await execute(connection, valid) == [(True,)]


async def test_a_worker_that_comes_while_an_index_is_built_is_seen_at_the_end(
    database: Database,
    connection: AsyncConnection,
    other: AsyncConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_a_second_revision(tmp_path, monkeypatch, INDEX)
    async with connection.transaction():  # the index waits for whoever writes to the table
        await execute(connection, "LOCK TABLE fleet.task IN ROW EXCLUSIVE MODE")
        running = asyncio.create_task(upgrade(database))

        async def waits() -> bool:
            return bool(await execute(other, BUILDING))

        await eventually(waits)
        await new_lease(other, worker="meanwhile", schemas=OLD)
    with pytest.raises(UpgradeRefused, match="meanwhile"):
        await running
    assert (await revision(connection))[0] == "0001"
