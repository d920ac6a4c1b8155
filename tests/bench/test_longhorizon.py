"""The adapter for the public harness, as the harness runs it: a process that is told by its environment, and read by line."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import psycopg
import pytest

from bench.longhorizon.gauges import Gauges, Latencies
from bench.longhorizon.orders import read
from bench.longhorizon.producer import LANES, Producer
from fleet import Fleet, Settings
from fleet import app as submitting
from fleet.embedded import Server, temporary
from fleet.postgres import migrate
from fleet.postgres.database import AsyncConnection, Database
from fleet.postgres.submit import copy
from tests.support import eventually_sync

ROOT = Path(__file__).resolve().parents[2]
PERIOD_SECONDS = 0.1
BATCH_MAX = 50
EXIT_SECONDS = 5.0
LATENCIES = ["claim_p50_ms", "claim_p95_ms", "claim_p99_ms"]
METRICS = [*LATENCIES, "enqueue_rate", "completion_rate", "queue_depth"]
pytestmark = pytest.mark.faults  # a server of its own, which crashes
WINDOWS = [30, 30, 30, 0.5, 0.5, 0]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of these tests alone, which may be stopped."""
    with temporary({"max_connections": "50", "fsync": "off"}) as server:
        yield server


@contextmanager
def empty_database(server: Server) -> Iterator[str]:
    """Lend the URL of a database without the schema."""
    name = f"long_horizon_{uuid4().hex[:8]}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield server.url_of(name)
    server.start()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def database_url(server: Server) -> Iterator[str]:
    with empty_database(server) as url:
        yield url


class Adapter:
    """One run of it. What it prints goes to files, which are read while it writes them."""

    def __init__(self, folder: Path, url: str, **orders: object) -> None:
        self.output, self.log, self.url = folder / "output", folder / "log", url
        usual = {"PRODUCER_RATE": 300, "PRODUCER_BATCH_MAX": BATCH_MAX, "PRODUCER_BATCH_MS": 10, "WORKER_COUNT": 8}
        given = usual | {"DATABASE_URL": url, "SAMPLE_EVERY_S": PERIOD_SECONDS, "FLEET_TTL": "2s"} | orders
        self.began, self.seconds = time.monotonic(), 0.0
        self.period_seconds = float(str(given["SAMPLE_EVERY_S"]))
        with self.output.open("wb") as output, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.longhorizon"],
                cwd=ROOT,
                env=os.environ | {name: str(value) for name, value in given.items()},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=log,
            )

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def records(self) -> list[dict[str, Any]]:
        *lines, _ = self.output.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def samples(self, *, after: datetime, ticks: int = 1) -> list[dict[str, Any]]:
        """Return all samples of whole periods after that moment, as soon as they are of so many ticks."""
        since = after + timedelta(seconds=self.period_seconds)

        def probe() -> list[dict[str, Any]]:
            assert self.process.poll() is None, self.log.read_text()
            found = [each for each in self.records()[1:] if datetime.fromisoformat(each["t"]) > since]
            return found if len({each["t"] for each in found}) >= ticks else []

        return eventually_sync(probe)

    def goes_on(self) -> None:
        """Return when it has completed tasks again, counted from now."""
        now = datetime.now(UTC)

        def completed() -> list[float]:
            samples = self.samples(after=now)
            return [each["value"] for each in samples if each["metric"] == "completion_rate" and each["value"] > 0]

        eventually_sync(completed)

    def of(self, metric: str) -> list[dict[str, Any]]:
        return [each for each in self.records()[1:] if each["metric"] == metric]

    def ended(self) -> None:
        """Ask it to end, and see that it does so in time."""
        began = time.monotonic()
        self.process.terminate()
        assert self.process.wait(2 * EXIT_SECONDS) == 0, self.log.read_text()
        assert time.monotonic() - began < EXIT_SECONDS
        self.seconds = time.monotonic() - self.began

    def counts(self) -> tuple[int, int]:
        """How many tasks it says, at its end, that it has enqueued and completed."""
        said = re.search(r"^enqueued (\d+), completed (\d+)$", self.log.read_text(), re.MULTILINE)
        assert said, self.log.read_text()
        return int(said[1]), int(said[2])

    def killed(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Adapter]


@pytest.fixture
def start(tmp_path: Path, database_url: str) -> Iterator[Start]:
    """Start one with orders of its own; it is killed at the end of the test."""
    started = []

    def start(**orders: object) -> Adapter:
        started.append(Adapter(tmp_path, database_url, **orders))
        return started[-1]

    yield start
    for adapter in started:
        adapter.killed()


@pytest.fixture(scope="module")
def undisturbed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapter]:
    """One that has run for a while and has ended in order: what it said, and its database, are there to be looked at."""
    with empty_database(server) as url:
        adapter = Adapter(tmp_path_factory.mktemp("undisturbed"), url, SAMPLE_EVERY_S=0.5)
        try:
            adapter.goes_on()
            adapter.samples(ticks=2, after=datetime.now(UTC))
            nothing_was_lost(adapter)
            yield adapter
        finally:
            adapter.killed()


def nothing_was_lost(adapter: Adapter) -> None:
    """End it: what it calls enqueued is there, done or waiting, and what it calls completed is done; all at no loss."""
    adapter.ended()
    enqueued, completed = adapter.counts()
    with psycopg.connect(adapter.url) as connection:
        rows = connection.execute("SELECT state, count(*) FROM fleet.task GROUP BY state").fetchall()
        assert connection.execute("SELECT count(*) FROM fleet.task WHERE losses + failures > 0").fetchone() == (0,)
    states: dict[str, int] = dict(rows)
    assert states.keys() <= {"SUCCEEDED", "QUEUED"}
    # What it was just writing when it had to end may be there uncounted.
    assert 0 < enqueued <= sum(states.values()) <= enqueued + LANES * BATCH_MAX
    assert 0 < completed <= states["SUCCEEDED"]


def test_it_describes_itself_as_its_manifest_says_and_makes_its_schema(undisturbed: Adapter) -> None:
    manifest = json.loads((ROOT / "bench" / "longhorizon" / "adapter.json").read_text())
    found = undisturbed.records()[0]
    assert found["kind"] == "descriptor"
    assert found["system"] == manifest["system"] == "fleet"
    assert found["event_tables"] == manifest["event_tables"]
    assert found["extensions"] == manifest["extensions"] == []
    assert undisturbed.url.endswith(f"/{found['db_name']}")
    assert {"version", "schema_version"} <= found.keys()
    assert datetime.fromisoformat(found["started_at"]) <= datetime.now(UTC)
    with psycopg.connect(undisturbed.url) as connection:
        for relation in (*manifest["event_tables"], *manifest["event_indexes"]):
            assert connection.execute("SELECT to_regclass(%s) IS NOT NULL", (relation,)).fetchone() == (True,)


def test_its_samples_have_the_form_that_is_asked_for_and_are_aligned_to_the_clock(undisturbed: Adapter) -> None:
    samples = undisturbed.records()[1:]
    ticks = sorted({each["t"] for each in undisturbed.of("claim_p50_ms")})  # none before something has started
    assert len(ticks) >= 3
    for tick in ticks:
        values = {each["metric"]: each for each in samples if each["t"] == tick}
        assert sorted(values) == sorted(METRICS)
        assert values["claim_p50_ms"]["value"] <= values["claim_p95_ms"]["value"] <= values["claim_p99_ms"]["value"]
        assert {name: values[name]["window_s"] for name in METRICS} == dict(zip(METRICS, WINDOWS, strict=True))
    fixed = {(each["system"], each["kind"], each["subject_kind"], each["subject"]) for each in samples}
    assert fixed == {("fleet", "adapter", "adapter", "")}
    offsets = [datetime.fromisoformat(tick).timestamp() / 0.5 % 1 for tick in ticks]
    assert min(min(offset, 1 - offset) for offset in offsets) < 0.1


def test_it_enqueues_at_the_rate_that_was_ordered(undisturbed: Adapter) -> None:
    rates = [each["value"] for each in undisturbed.of("enqueue_rate")]
    assert any(200 < rate < 400 for rate in rates), rates
    with psycopg.connect(undisturbed.url) as connection:
        (enqueued,) = connection.execute("SELECT count(*) FROM fleet.task").fetchone() or (0,)
    assert enqueued <= 300 * undisturbed.seconds


def test_it_goes_on_though_all_its_connections_are_killed_again_and_again(start: Start) -> None:
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
    )
    adapter = start()
    adapter.goes_on()
    with psycopg.connect(adapter.url, autocommit=True) as connection:
        for _ in range(4):
            killed = connection.execute(kill, (connection.info.backend_pid,)).fetchone()
            assert killed is not None
            assert killed[0] >= 3
            adapter.goes_on()
    nothing_was_lost(adapter)


def test_it_goes_on_when_postgresql_has_crashed_and_is_back(start: Start, server: Server) -> None:
    adapter = start()
    adapter.goes_on()
    server.stop_immediately()
    server.start()
    adapter.goes_on()
    nothing_was_lost(adapter)


def test_it_waits_for_a_database_that_is_away_at_its_start_and_ends_in_time_without_one(
    start: Start, server: Server
) -> None:
    server.stop_immediately()
    adapter = start()
    eventually_sync(lambda: "Connection refused" in adapter.log.read_text())
    assert adapter.records() == []
    server.start()
    adapter.goes_on()
    server.stop_immediately()
    adapter.ended()


def test_it_keeps_the_queue_at_the_depth_that_was_ordered(start: Start) -> None:
    orders = {"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": 200, "JOB_WORK_MS": 20, "WORKER_COUNT": 2}
    adapter = start(**orders)
    adapter.goes_on()
    samples = adapter.samples(ticks=4, after=datetime.now(UTC))
    depths = [each["value"] for each in samples if each["metric"] == "queue_depth"]
    assert all(100 <= depth <= 300 for depth in depths)
    with psycopg.connect(adapter.url) as connection:
        (depth,) = connection.execute("SELECT count(*) FROM fleet.task WHERE state = 'QUEUED'").fetchone() or (0,)
    assert 100 <= depth <= 300
    nothing_was_lost(adapter)


def test_it_enqueues_exactly_what_standard_input_asks_for(start: Start) -> None:
    adapter = start(PRODUCER_PACING="harness")
    adapter.stdin.write(b"ENQUEUE 7\n" * 3 + b"ENQUEUE 120\n")
    adapter.stdin.flush()
    adapter.goes_on()
    with psycopg.connect(adapter.url, autocommit=True) as connection:
        done = "SELECT count(*) = 141 FROM fleet.task WHERE state = 'SUCCEEDED'"
        eventually_sync(lambda: connection.execute(done).fetchone() == (True,))
    adapter.ended()
    assert adapter.counts() == (141, 141)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Fleet]:
    settings = Settings(ttl=timedelta(seconds=2))
    migrate.upgrade(Database(database_url, settings))
    async with Fleet(database_url, settings=settings) as app:
        yield app


@pytest.mark.parametrize("happened", [True, False])
async def test_a_batch_whose_answer_was_lost_counts_if_it_is_found(
    app: Fleet, database_url: str, monkeypatch: pytest.MonkeyPatch, *, happened: bool
) -> None:
    @app.task(idempotent=True)
    async def work(produced_at: float, batch: str, number: int, padding: str) -> None: ...

    async def copy_unheard(connection: AsyncConnection, *arguments: Any) -> None:
        if happened:
            await copy(connection, *arguments)
        raise psycopg.OperationalError("the answer was lost")

    monkeypatch.setattr(submitting, "copy", copy_unheard)
    orders = read({"DATABASE_URL": database_url})
    assert await Producer(app, work, orders, Gauges())._submit(5) is happened


def test_percentiles_are_told_to_a_thousandth_and_are_none_without_latencies() -> None:
    latencies = Latencies()
    assert latencies.percentiles(0.5, 0.99) == []
    for milliseconds in range(1, 1001):
        latencies.add(milliseconds)
    assert latencies.percentiles(0.5, 0.99) == [pytest.approx(500, rel=2e-3), pytest.approx(990, rel=2e-3)]


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        ({}, "DATABASE_URL"),
        ({"DATABASE_URL": "x", "PRODUCER_RATE": "fast"}, "PRODUCER_RATE is 'fast'"),
        ({"DATABASE_URL": "x", "PRODUCER_MODE": "bursts"}, "fixed, depth-target"),
        ({"DATABASE_URL": "x", "SCENARIO": "migrate_only"}, "long_horizon"),
    ],
)
def test_orders_that_cannot_be_followed_are_named(orders: dict[str, str], words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        read(orders)
