"""The database lets the workers in no more, or to no table, or only to read: they wait, and lose nothing."""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest

from fleet.config import Settings
from fleet.embedded import Server
from fleet.errors import DatabaseUnreachable
from fleet.postgres.database import AsyncConnection, Database
from tests.faults.own_server import database_url, judge_load, log_of, server
from tests.faults.steps import CALM, LEASES, NOW, RESUME_SECONDS, play
from tests.processes import program
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.load import Load, load
from tests.processes.stage import Stage
from tests.support import TTL, eventually_sync, submit

__all__ = ["database_url", "server"]

TERMINATE = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name ~ '^fleet '"
)
RENEWED_SINCE = "SELECT min(renewed_at) > %s FROM fleet.lease WHERE state = 'LIVE'"
ROLE = """
CREATE ROLE worker LOGIN PASSWORD 'first';
GRANT USAGE ON SCHEMA fleet TO worker;
GRANT ALL ON ALL TABLES IN SCHEMA fleet TO worker;
GRANT ALL ON ALL SEQUENCES IN SCHEMA fleet TO worker;
"""


@pytest.fixture
def role(database_url: str) -> Iterator[str]:
    """A role that may do what a worker does; it is gone afterwards."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(ROLE)
        yield "worker"
        connection.execute("DROP OWNED BY worker; DROP ROLE worker")


def url_for(url: str, user: str, passfile: Path) -> str:
    """The same database for another user, whose password stands in a file."""
    parts = urlsplit(url)
    return f"postgresql://{user}@{parts.hostname}:{parts.port}{parts.path}?passfile={passfile}"


def write_password(passfile: Path, user: str, password: str) -> None:
    passfile.write_text(f"*:*:*:{user}:{password}\n", encoding="ascii")
    passfile.chmod(0o600)


async def nobody_lost_anything(watcher: AsyncConnection, sink: Sink, submitted: Load, task: UUID) -> None:
    """The one task that was at work has done its effect once, and so has everything that came in meanwhile."""
    assert await terminal(watcher, task) == "SUCCEEDED"
    assert sink.attempts("effect", task) == [1]
    await judge_load(watcher, sink, submitted)


@pytest.mark.fault("Database", "credentials are rotated")
async def test_a_password_that_changes_costs_nobody_a_lease_and_the_new_one_is_read_without_a_restart(
    folder: Path, server: Server, database_url: str, role: str, stage: Stage, watcher: AsyncConnection
) -> None:
    passfile = folder / "pgpass"
    write_password(passfile, role, "first")
    crew = Crew(url_for(database_url, role, passfile), folder, watcher, stage.path)
    try:
        workers = await crew.workers(2, slots=8, ttl="3s")
        leases = await value(watcher, LEASES)
        task = await submit(watcher, name="act_once", max_attempts=1)
        actor = await stage.arrival(task)
        async with load(database_url, milliseconds=20) as submitted:
            await submitted.more(60)
            await watcher.execute("ALTER ROLE worker PASSWORD 'second'")
            await submitted.more(60)  # whoever is in stays in
            assert await value(watcher, TERMINATE) >= 2
            play(actor)
            refused_at = await value(watcher, NOW)
            await until(watcher, "SELECT clock_timestamp() - %s > %s", refused_at, 2 * CALM)
            assert 'password authentication failed for user "worker"' in log_of(server)
            assert await value(watcher, "SELECT max(renewed_at) < %s FROM fleet.lease", refused_at)
            write_password(passfile, role, "second")
            await until(watcher, RENEWED_SINCE, refused_at, seconds=RESUME_SECONDS)
            await submitted.more(60)
        await nobody_lost_anything(watcher, crew.sink, submitted, task)
        assert await value(watcher, LEASES) == leases
        assert [worker.popen.poll() for worker in workers] == [None, None]
    finally:
        crew.clean_up()


@pytest.mark.fault("Database", "a privilege is revoked")
@pytest.mark.parametrize(
    "privilege", ["ALL ON ALL TABLES IN SCHEMA fleet", "UPDATE ON fleet.task", "USAGE ON SCHEMA fleet"]
)
async def test_a_privilege_that_is_taken_for_two_leases_and_given_back_costs_nobody_a_task_or_a_lease(
    folder: Path, server: Server, database_url: str, role: str, stage: Stage, watcher: AsyncConnection, privilege: str
) -> None:
    passfile = folder / "pgpass"
    write_password(passfile, role, "first")
    crew = Crew(url_for(database_url, role, passfile), folder, watcher, stage.path)
    try:
        workers = await crew.workers(2, slots=8, ttl="3s")
        leases = await value(watcher, LEASES)
        task = await submit(watcher, name="act_once", max_attempts=1)
        actor = await stage.arrival(task)
        denied = log_of(server).count("permission denied for ")
        async with load(database_url, milliseconds=20) as submitted:
            await submitted.more(60)
            await watcher.execute(f"REVOKE {privilege} FROM worker")
            revoked_at = await value(watcher, NOW)
            play(actor)
            await until(watcher, "SELECT clock_timestamp() - %s > %s", revoked_at, 2 * CALM)
            assert await value(watcher, "SELECT state FROM fleet.task WHERE id = %s", task) == "RUNNING"
            assert log_of(server).count("permission denied for ") > denied
            await watcher.execute(f"GRANT {privilege} TO worker")
            given_at = await value(watcher, NOW)
            await until(watcher, RENEWED_SINCE, given_at, seconds=RESUME_SECONDS)
            await submitted.more(60)
        await nobody_lost_anything(watcher, crew.sink, submitted, task)
        assert await value(watcher, LEASES) == leases
        assert [worker.popen.poll() for worker in workers] == [None, None]
    finally:
        crew.clean_up()


@pytest.mark.fault("Database", "a read-only or standby address")
async def test_a_database_that_becomes_read_only_for_two_leases_is_waited_for(
    crew: Crew, database_url: str, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(2, slots=8, ttl="3s")
    leases = await value(watcher, LEASES)
    task = await submit(watcher, name="act_once", max_attempts=1)
    actor = await stage.arrival(task)
    database = urlsplit(database_url).path.removeprefix("/")
    async with load(database_url, milliseconds=20) as submitted:
        await submitted.more(60)
        await watcher.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        assert await value(watcher, TERMINATE) >= 2
        read_only_at = await value(watcher, NOW)
        play(actor)
        await until(watcher, "SELECT clock_timestamp() - %s > %s", read_only_at, 2 * CALM)
        assert await value(watcher, "SELECT max(renewed_at) < %s FROM fleet.lease", read_only_at)
        with pytest.raises(DatabaseUnreachable):
            await submit_as_a_client(database_url)
        await watcher.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
        await until(watcher, RENEWED_SINCE, read_only_at, seconds=RESUME_SECONDS)
        await submitted.more(60)
    await nobody_lost_anything(watcher, sink, submitted, task)
    assert await value(watcher, LEASES) == leases
    assert [worker.popen.poll() for worker in workers] == [None, None]


async def submit_as_a_client(url: str) -> None:
    """Submit one task as a user's program would."""
    settings = Settings(ttl=TTL)
    program.app.use(Database(url, settings), settings)
    async with program.app:
        await program.quick.submit()


@contextmanager
def standby_of(server: Server, folder: Path) -> Iterator[str]:
    """A streaming standby; lends its `host:port`."""
    with psycopg.connect(server.url) as connection:
        binaries = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone()
        data = connection.execute("SHOW data_directory").fetchone()
    assert binaries
    assert data
    owner = Path(data[0]).stat()
    account: dict[str, Any] = (
        {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    folder.chmod(0o755)
    home = folder / "standby"
    home.mkdir(mode=0o700)
    os.chown(home, owner.st_uid, owner.st_gid)
    subprocess.run(
        [f"{binaries[0]}/pg_basebackup", "-R", "--checkpoint=fast", "-D", str(home), "-d", server.url],
        check=True, cwd="/", **account,
    )  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [f"--{name}" for name in ("listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=")]
    command = [f"{binaries[0]}/postgres", "-D", str(home), *options]
    with (folder / "standby.log").open("wb") as log:
        process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, **account)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def streams(url: str) -> bool:
    """Whether this is a standby that has caught up with the schema."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            found = connection.execute("SELECT pg_is_in_recovery(), to_regclass('fleet.task') IS NOT NULL").fetchone()
    except psycopg.OperationalError:
        return False
    return found == (True, True)


@pytest.mark.fault("Database", "a read-only or standby address")
async def test_the_address_of_a_standby_is_refused_in_words_and_passed_over_where_there_is_another(
    folder: Path, server: Server, database_url: str, stage: Stage, watcher: AsyncConnection
) -> None:
    parts = urlsplit(database_url)
    with standby_of(server, folder) as address:
        credentials, primary = parts.netloc.rsplit("@", 1)
        alone = f"postgresql://{credentials}@{address}{parts.path}"
        both = f"postgresql://{credentials}@{address},{primary}{parts.path}"
        await asyncio.to_thread(eventually_sync, lambda: streams(alone))
        with pytest.raises(DatabaseUnreachable):
            await submit_as_a_client(alone)
        crew = Crew(alone, folder, watcher, stage.path)
        began = time.monotonic()
        try:
            lost = crew.start()
            assert await lost.ended() != 0
            assert "session is read-only" in lost.words()
            assert time.monotonic() - began < 2 * RESUME_SECONDS
        finally:
            crew.clean_up()
        assert await value(watcher, "SELECT count(*) FROM fleet.lease") == 0
        crew = Crew(both, folder, watcher, stage.path)
        try:
            await crew.worker()
            await submit_as_a_client(both)
            task = await value(watcher, "SELECT id FROM fleet.task")
            assert await terminal(watcher, task) == "SUCCEEDED"
        finally:
            crew.clean_up()
