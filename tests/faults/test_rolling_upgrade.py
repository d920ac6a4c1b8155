"""Two releases beside each other: real worker processes of an old and a new one, on a schema that changes under them."""

import asyncio
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.postgres.database import AsyncConnection
from tests.http.running import environment
from tests.processes.crew import ROOT, until, value
from tests.support import eventually, submit

SECONDS = 120.0  # a dozen processes start, one after another
SHOP = """
import asyncio
from fleet import Fleet

app = Fleet()


@app.task(idempotent=True)
async def work() -> None:
    await asyncio.sleep(0.02)
"""
REVISION = """
from alembic import op

revision, down_revision = "{number:04}", "{before:04}"


def upgrade():
    op.execute("{change}")
"""
ADD = "ALTER TABLE fleet.task ADD COLUMN extra text"
DROP = "ALTER TABLE fleet.task DROP COLUMN extra"
LEASES = "SELECT count(*) FROM fleet.lease WHERE worker = %s AND state = 'LIVE'"
REVISION_NOW = "SELECT version_num FROM fleet.fleet_alembic_version"
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING')"
BADLY = "SELECT count(*) FROM fleet.task WHERE state <> 'SUCCEEDED' OR attempt <> 1"


@dataclass
class Release:
    """A copy of fleet that works with other schemas, and brings other revisions."""

    folder: Path
    url: str

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of this release, which is to end by itself."""
        return subprocess.run(
            [sys.executable, "-m", "fleet", *command],
            cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    @asynccontextmanager
    async def worker(self, watcher: AsyncConnection, name: str) -> AsyncIterator["subprocess.Popen[str]"]:
        """Run a worker of this release, and yield it when it has its lease."""
        command = [sys.executable, "-m", "fleet", "worker", "run", "shop:app", "--name", name]
        process = await asyncio.to_thread(self._start, command)
        try:
            await until(watcher, LEASES, name, is_=lambda count: count == 1, seconds=SECONDS)
            yield process
        finally:
            process.kill()
            process.communicate()

    def _start(self, command: list[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def _environment(self) -> dict[str, str]:
        return environment(self.url, FLEET_TTL="3s", PYTHONPATH=str(self.folder))


def release(folder: Path, url: str, schemas: tuple[int, int], *changes: str) -> Release:
    """Make a release that works with these schemas and brings these changes after the first revision."""
    shutil.copytree(ROOT / "fleet", folder / "fleet", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "alembic", folder / "alembic", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "fleet" / "schema.py"
    text = path.read_text()
    for name, number in zip(("SCHEMA_MIN", "SCHEMA_MAX"), schemas, strict=True):
        text, count = re.subn(rf"^{name} = \d+", f"{name} = {number}", text, flags=re.MULTILINE)
        assert count == 1
    path.write_text(text)
    for number, change in enumerate(changes, start=2):
        text = REVISION.format(number=number, before=number - 1, change=change)
        (folder / "alembic" / "versions" / f"{number:04}_change.py").write_text(text)
    (folder / "shop.py").write_text(SHOP)
    return Release(folder, url)


async def ended(process: "subprocess.Popen[str]") -> int:
    async def probe() -> bool:
        return process.poll() is not None

    await eventually(probe, SECONDS)
    return int(process.returncode)


async def all_done(watcher: AsyncConnection) -> None:
    await until(watcher, OPEN, is_=lambda count: count == 0, seconds=SECONDS)
    assert await value(watcher, BADLY) == 0


async def submit_some(connection: AsyncConnection) -> None:
    for _ in range(20):
        await submit(connection, max_attempts=1)


@pytest.mark.timeout(400)
@pytest.mark.fault("Deploy", "a migration while workers run")
async def test_a_fleet_is_upgraded_over_two_releases_without_a_stop(
    tmp_path: Path, database_url: str, watcher: AsyncConnection, connection: AsyncConnection
) -> None:
    """Expand under the old workers, replace them one by one, contract when none of them is left."""
    first = release(tmp_path / "1", database_url, (1, 2))
    second = release(tmp_path / "2", database_url, (2, 3), ADD)
    third = release(tmp_path / "3", database_url, (2, 4), ADD, DROP)
    async with first.worker(watcher, "one") as one, first.worker(watcher, "other") as other:
        await submit_some(connection)
        expanded = second.run("db", "upgrade")
        assert expanded.returncode == 0, expanded.stderr
        assert await value(watcher, REVISION_NOW) == "0002"
        await submit_some(connection)
        await all_done(watcher)
        one.send_signal(signal.SIGTERM)
        assert await ended(one) == 0
        async with second.worker(watcher, "new"):
            await submit_some(connection)
            await all_done(watcher)
            refused = third.run("db", "upgrade")
            assert refused.returncode == 6, refused.stderr
            assert "schema 3 does not suit 1 of the workers" in refused.stderr
            assert "other on " in refused.stderr
            assert "schemas 1 to 2" in refused.stderr
            assert await value(watcher, REVISION_NOW) == "0002"
        other.send_signal(signal.SIGTERM)
        assert await ended(other) == 0
    await watcher.execute("UPDATE fleet.lease SET expires_at = clock_timestamp() WHERE worker = 'new'")
    async with second.worker(watcher, "newer"), third.worker(watcher, "newest"):
        contracted = third.run("db", "upgrade")
        assert contracted.returncode == 0, contracted.stderr
        assert await value(watcher, REVISION_NOW) == "0003"
        await submit_some(connection)
        await all_done(watcher)
        before = await value(watcher, "SELECT count(*) FROM fleet.lease")
        late = first.run("worker", "run", "shop:app")
        assert (late.returncode, "Upgrade pgfleet" in late.stderr) == (4, True)
        assert await value(watcher, "SELECT count(*) FROM fleet.lease") == before


@pytest.mark.timeout(400)
@pytest.mark.fault("Deploy", "a binary older than the schema")
async def test_a_worker_whose_schema_was_changed_by_force_works_on_and_ends_with_4_at_its_next_lease(
    tmp_path: Path, database_url: str, watcher: AsyncConnection, connection: AsyncConnection
) -> None:
    old = release(tmp_path / "1", database_url, (1, 1))
    new = release(tmp_path / "2", database_url, (1, 3), ADD)
    async with old.worker(watcher, "old") as worker:
        assert new.run("db", "upgrade").returncode == 6
        forced = new.run("db", "upgrade", "--force")
        assert forced.returncode == 0, forced.stderr
        assert "went on over old on " in forced.stderr
        await submit_some(connection)
        await all_done(watcher)
        await watcher.execute("UPDATE fleet.lease SET state = 'REAPED' WHERE worker = 'old'")
        assert await ended(worker) == 4
        assert worker.stderr is not None
        said = worker.stderr.read()
        assert "at revision 0002, which this version of pgfleet (schemas 1 to 1) does not know" in said
        assert "Traceback" not in said
    assert await value(watcher, "SELECT count(*) FROM fleet.lease") == 1
