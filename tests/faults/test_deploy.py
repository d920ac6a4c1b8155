"""Workers, schemas and settings change under load: nothing is lost, and what does not fit says so before it writes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fleet.config import Settings
from fleet.postgres import migrate
from fleet.postgres.database import AsyncConnection, Database
from fleet.postgres.scratch import new_database
from fleet.postgres.tables import metadata
from tests.faults.steps import OPEN
from tests.http.running import environment
from tests.migrations.test_upgrade import with_a_second_revision
from tests.processes.crew import ROOT, Crew, Sink, until, value
from tests.processes.load import Load, load
from tests.processes.oracle import judge_all
from tests.support import PATIENCE_SECONDS, eventually_sync

CHANGES = int(os.environ.get("FLEET_TEST_CHANGES", "8"))  # of one worker for another
LATER = "SELECT clock_timestamp() > %s + interval '2 s'"
EVERYTHING = " UNION ALL ".join(f"SELECT to_jsonb(t)::text FROM {table} AS t" for table in metadata.tables)
MIGRATION = """op.execute('''
    ALTER TABLE fleet.task ADD COLUMN extra text;
    ALTER TABLE fleet.lease ADD COLUMN extra text;
    CREATE INDEX task_extra ON fleet.task (extra) WHERE extra IS NOT NULL;
''')"""


async def judge_load(watcher: AsyncConnection, sink: Sink, submitted: Load) -> None:
    """Everything accepted has run exactly once, and nothing was charged for it."""
    await until(watcher, OPEN, is_=lambda count: count == 0, seconds=60)
    told = await judge_all(watcher, sink)
    assert {story.task["id"] for story in told} >= set(submitted.accepted)
    for story in told:
        assert story.task["state"] == "SUCCEEDED", story
        assert (story.task["losses"], story.task["failures"], len(story.starts)) == (0, 0, 1), story


@pytest.mark.fault("Deploy", "a worker is started and stopped every two seconds")
@pytest.mark.timeout(120 + 10 * CHANGES)
async def test_one_worker_for_another_every_two_seconds_under_load_loses_and_charges_nothing(
    crew: Crew, database_url: str, watcher: AsyncConnection, sink: Sink
) -> None:
    worker = await crew.worker(slots=4, ttl="3s")
    async with load(database_url, milliseconds=30, every_seconds=0.02) as submitted:
        for _ in range(CHANGES):
            began = await value(watcher, "SELECT clock_timestamp()")
            await submitted.more(10)
            await until(watcher, LATER, began)
            worker.send(signal.SIGTERM)
            successor = await crew.worker(slots=4, ttl="3s")
            assert await worker.ended() == 0
            worker = successor
    await judge_load(watcher, sink, submitted)
    states = "SELECT count(*) FILTER (WHERE state = 'RELEASED'), count(*) FROM fleet.lease"
    assert await (await watcher.execute(states)).fetchone() == (CHANGES, CHANGES + 1)


@pytest.mark.fault("Deploy", "a migration while workers run")
async def test_a_migration_under_load_costs_the_running_workers_nothing(
    crew: Crew, database_url: str, watcher: AsyncConnection, sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = await crew.workers(2, slots=4, ttl="3s")
    leases = await value(watcher, "SELECT array_agg(id ORDER BY id) FROM fleet.lease")
    with_a_second_revision(tmp_path, monkeypatch, MIGRATION)
    database = Database(database_url, Settings())
    async with load(database_url, milliseconds=10, every_seconds=0.01) as submitted:
        await submitted.more(50)
        migrate.upgrade(database)
        assert migrate.check(database) == "0002"
        await submitted.more(100)
    await judge_load(watcher, sink, submitted)
    columns = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'fleet.task'::regclass AND attname = 'extra'"
    assert await value(watcher, columns) == 1
    assert [worker.popen.poll() for worker in workers] == [None, None]
    assert await value(watcher, "SELECT array_agg(id ORDER BY id) FROM fleet.lease") == leases


@pytest.mark.fault("Deploy", "a migrator is killed")
def test_a_migrator_that_is_killed_half_way_leaves_nothing_and_the_next_one_makes_the_schema(server_url: str) -> None:
    waits = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'fleet migrate' AND wait_event_type = 'Lock'"
    )
    with new_database(server_url, "template1") as url, psycopg.connect(url, autocommit=True) as watcher:
        watcher.execute("CREATE SCHEMA fleet")
        with psycopg.connect(url) as obstacle:
            obstacle.execute("CREATE TABLE fleet.lease (in_the_way int)")  # not committed: a second one waits for it
            migrator = subprocess.Popen(
                [sys.executable, "-m", "fleet", "db", "upgrade"], env=environment(url), cwd=ROOT
            )
            try:
                found: list[tuple[Any, ...]] = eventually_sync(lambda: watcher.execute(waits).fetchall())
            finally:
                migrator.kill()
            assert migrator.wait(PATIENCE_SECONDS) == -signal.SIGKILL
            backend = "SELECT FROM pg_stat_activity WHERE pid = %s"
            eventually_sync(lambda: not watcher.execute(backend, found[0]).fetchall())
            obstacle.rollback()
        left = "SELECT relname FROM pg_class WHERE relnamespace = 'fleet'::regnamespace"
        assert watcher.execute(left).fetchall() == []
        migrate.upgrade(Database(url, Settings()))
        assert migrate.check(Database(url, Settings()))


@pytest.mark.fault("Deploy", "a binary older than the schema")
@pytest.mark.parametrize("command", [("worker", "run"), ("worker", "run", "--processes=2"), ("api", "run", "--port=0")])
async def test_a_binary_older_than_the_schema_ends_with_4_and_has_written_nothing(
    watcher: AsyncConnection, database_url: str, command: tuple[str, ...]
) -> None:
    await watcher.execute("UPDATE fleet.fleet_alembic_version SET version_num = 'later'")
    await watcher.execute("INSERT INTO fleet.queue (name) VALUES ('default')")
    before = await (await watcher.execute(EVERYTHING.encode())).fetchall()
    said = fleet(database_url, *command, "tests.http.shop:app")
    assert said.returncode == 4, said.stderr
    assert "later" in said.stderr
    assert "Upgrade pgfleet" in said.stderr
    assert await (await watcher.execute(EVERYTHING.encode())).fetchall() == before
    version = "SELECT array_agg(version_num::text) FROM fleet.fleet_alembic_version"
    assert await value(watcher, version) == ["later"]


@pytest.mark.fault("Deploy", "a configuration that violates an inequality")
@pytest.mark.parametrize(
    ("settings", "rule", "facts"),
    [
        ({"FLEET_TTL": "10s", "FLEET_RENEW_EVERY": "5s"}, "3 * renew_every <= ttl - margin", "renew_every is 5s"),
        ({"FLEET_TTL": "10s", "FLEET_REAP_EVERY": "4s"}, "3 * reap_every <= ttl", "reap_every is 4s"),
        ({"FLEET_TTL": "10s", "FLEET_STATEMENT_TIMEOUT": "10s"}, "statement_timeout < ttl", "ttl is 10s"),
        ({"FLEET_POLL": "20s"}, "0 < poll <= poll_listening", "poll is 20s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_worker_whose_settings_contradict_each_other_names_the_rule_and_does_not_start(
    watcher: AsyncConnection, database_url: str, settings: dict[str, str], rule: str, facts: str
) -> None:
    said = fleet(database_url, "worker", "run", "tests.http.shop:app", **settings)
    assert said.returncode == 2, said.stderr
    assert f"{rule} does not hold" in said.stderr
    assert facts in said.stderr
    assert "Traceback" not in said.stderr
    assert await value(watcher, "SELECT count(*) FROM fleet.lease") == 0


def fleet(database_url: str, *command: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of this very code, which is to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "fleet", *command],
        env=environment(database_url, **settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
