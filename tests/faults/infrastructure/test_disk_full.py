"""The server's disk fills up under load: a clear refusal, nothing accepted and gone, and nobody has to be restarted."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from fleet import Fleet
from fleet.cli.failures import ExitCode
from fleet.errors import DatabaseFull
from fleet.postgres.database import AsyncConnection
from tests.conformance.cluster import Cluster
from tests.conformance.programs import binaries
from tests.conformance.room import Room, small_disk
from tests.faults.infrastructure.steps import (
    LEASES,
    alive,
    all_renewed,
    create_database,
    migrated,
    nothing_lost,
    present,
)
from tests.http.running import Running, environment
from tests.processes.crew import ROOT, Crew, Sink, value
from tests.processes.load import Load, load
from tests.support import eventually

MIB = 1024 * 1024
NO_SPACE = os.strerror(errno.ENOSPC)

if os.geteuid() != 0:
    pytest.skip("only root can mount the small disk that these tests fill", allow_module_level=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left on a disk; return the file that has it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    assert os.statvfs(disk).f_bavail == 0
    return ballast


class TestData:
    """The tables' disk is full; the log has another."""

    @pytest.fixture
    def disk(self, lent: Room) -> Iterator[Path]:
        with small_disk(lent, "tables", 40 * MIB) as disk:
            yield disk

    @pytest.fixture
    def database_url(self, lent: Room, disk: Path) -> str:
        cluster = Cluster(lent, binaries("18"), {"max_connections": "60", "shared_buffers": "32MB"}).start()
        (disk / "space").mkdir(mode=0o700)
        lent.give(disk / "space")
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{disk / 'space'}'")
            connection.execute("ALTER SYSTEM SET default_tablespace = small")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("CREATE DATABASE fleet TEMPLATE template0 ENCODING 'UTF8' TABLESPACE small")
        return migrated(cluster.url_of("fleet"))

    @pytest.mark.fault("Database", "disk full")
    async def test_submitting_is_refused_in_words_that_name_the_disk_and_everything_goes_on_when_there_is_room(
        self, crew: Crew, disk: Path, database_url: str, folder: Path, watcher: AsyncConnection, sink: Sink
    ) -> None:
        workers = await crew.workers(2, slots=8)
        leases = await value(watcher, LEASES)
        async with load(database_url, milliseconds=20) as submitted, Fleet(database_url) as app:
            await submitted.more(50)
            ballast = fill(disk)
            await eventually(lambda: refusals(submitted, 20))
            with pytest.raises(DatabaseFull, match=f"the disk .* is full: .*{NO_SPACE}.*make room there"):
                await fill_pages(app)
            await asyncio.to_thread(is_told_by_http, folder, database_url)
            await asyncio.to_thread(is_told_by_the_command_line, database_url)
            assert alive(workers)
            refused = submitted.unknown[:-1]  # the last one may be on its way
            ballast.unlink()
            await all_renewed(watcher, 2)
            await submitted.more(100)
        assert not any(await present(watcher, refused)), "what was refused is there"
        await watcher.execute("DELETE FROM fleet.task WHERE name = 'echo'")
        await nothing_lost(watcher, sink, submitted)
        assert await value(watcher, LEASES) == leases
        assert alive(workers)


async def refusals(submitted: Load, count: int) -> bool:
    return len(submitted.unknown) >= count


async def fill_pages(app: Fleet) -> None:
    """Submit what nobody runs, too large for what room is left inside of the pages that the table has."""

    @app.task
    async def echo(value: str) -> None: ...

    for _ in range(10_000):
        await echo.submit(too_large())


def too_large() -> str:
    return os.urandom(3000).hex()


def is_told_by_http(folder: Path, database_url: str) -> None:
    with Running(folder, database_url) as api:
        answer = api.call("POST", "/tasks", json={"name": "echo", "args": {"value": too_large()}})
    assert (answer.status_code, answer.json()["code"]) == (503, "database_full"), answer.text
    assert answer.json()["detail"].startswith("The disk")


def is_told_by_the_command_line(database_url: str) -> None:
    order = ["task", "submit", "echo", json.dumps({"value": too_large()}), "--app=tests.http.shop:app"]
    command = [sys.executable, "-m", "fleet", *order]
    done = subprocess.run(command, cwd=ROOT, env=environment(database_url), capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.DATABASE, done.stderr
    assert NO_SPACE in done.stderr


class TestLog:
    """The write-ahead log's disk is full: PostgreSQL stops at once, and cannot start before there is room."""

    @pytest.fixture
    def disk(self, lent: Room) -> Iterator[Path]:
        with small_disk(lent, "log", 48 * MIB) as disk:
            yield disk

    @pytest.fixture
    def cluster(self, lent: Room, disk: Path) -> Cluster:
        settings = {
            "max_connections": "60",
            "shared_buffers": "32MB",
            "checkpoint_timeout": "1h",
            "max_wal_size": "1GB",
        }
        words = (f"--waldir={disk / 'wal'}", "--wal-segsize=1")
        return Cluster(lent, binaries("18"), settings, words, name="logged").start()

    @pytest.fixture
    def database_url(self, cluster: Cluster) -> str:
        create_database(cluster.url, "fleet")
        return migrated(cluster.url_of("fleet"))

    @pytest.mark.fault("Database", "disk of the log full")
    async def test_what_was_accepted_survives_the_panic_and_everything_goes_on_when_there_is_room(
        self, crew: Crew, cluster: Cluster, disk: Path, database_url: str, watcher: AsyncConnection, sink: Sink
    ) -> None:
        workers = await crew.workers(2, slots=8)
        leases = await value(watcher, LEASES)
        async with load(database_url, milliseconds=20) as submitted:
            await submitted.more(50)
            ballast = fill(disk)
            await eventually(lambda: panicked(cluster))
            ballast.unlink()
            async with back(cluster, database_url) as again:
                await all_renewed(again, 2)
                await submitted.more(100)
        async with back(cluster, database_url) as again:
            await nothing_lost(again, sink, submitted)
            assert await value(again, LEASES) == leases
        assert alive(workers)


async def panicked(cluster: Cluster) -> bool:
    """Have the server write on into its log, until it says that it cannot."""
    try:
        async with await AsyncConnection.connect(cluster.url, autocommit=True) as connection:
            await connection.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 100000))")
    except psycopg.OperationalError:
        pass
    words = cluster.words()
    return "PANIC" in words and NO_SPACE in words


@asynccontextmanager
async def back(cluster: Cluster, url: str) -> AsyncIterator[AsyncConnection]:
    """Start the server where it gave up, and connect as soon as it lets us."""
    while True:
        if not cluster.runs():
            cluster.start(wait=False)
        try:
            connection = await AsyncConnection.connect(url, autocommit=True)
        except psycopg.OperationalError:
            await asyncio.sleep(0.1)
            continue
        async with connection:
            yield connection
        return
