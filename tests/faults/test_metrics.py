"""Metrics of real processes: a worker is killed, and the database, a scrape and Prometheus itself say the same of it."""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet import Settings
from fleet.metrics.fleet import FleetMetrics
from fleet.postgres.database import Database
from fleet.testing.replicas import Crew, replicas
from tests.faults.held import again, app, nothing, once, stall
from tests.faults.prometheus import prometheus
from tests.http.running import Running
from tests.support import eventually_sync

APP = "tests.faults.held:app"
WORKER = ("-m", "fleet", "worker", "run", APP, "--log=json")
ADDRESS = re.compile(r"metrics listening.* address=(http://[\d.]+:\d+)")
HELD = """
SELECT task.lease_id, count(*) FILTER (WHERE task.repeatable), count(*) FILTER (WHERE NOT task.repeatable)
FROM fleet.task WHERE task.state = 'RUNNING' GROUP BY task.lease_id
"""
COUNTERS = {
    "fleet_lease_expirations_total": {},
    "fleet_dead_letters_total": {"queue": "default", "reason": "lease_expired"},
    "fleet_reclaims_total": {"queue": "default"},
    "fleet_fence_rejections_total": {"queue": "default"},
}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def watcher(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def submitting(database_url: str, settings: Settings) -> None:
    app.use(Database(database_url, settings), settings)


def scrape(address: str, path: str = "/metrics") -> Samples:
    text = httpx.get(address + path, trust_env=False, timeout=30).raise_for_status().text
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def sample(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def counted(samples: Samples) -> tuple[float, ...]:
    return tuple(sample(samples, name, **labels) for name, labels in COUNTERS.items())


def address_of(crew: Crew, index: int) -> str:
    return eventually_sync(lambda: ADDRESS.search(crew.log(index)))[1]  # type: ignore[index]


def hold_both(watcher: psycopg.Connection[Any]) -> tuple[UUID, int, int]:
    """Submit tasks until one worker holds several of both kinds: its lease, and how many of each."""
    for _ in range(50):
        for _ in range(3):
            again.submit_sync()
            once.submit_sync()
        eventually_sync(lambda: not watcher.execute("SELECT FROM fleet.task WHERE state = 'QUEUED'").fetchall())
        both = [row for row in watcher.execute(HELD).fetchall() if row[1] > 1 and row[2] > 1]
        if both:
            lease, repeatable, unrepeatable = both[0]
            return lease, repeatable, unrepeatable
    raise AssertionError("no worker holds both")


def raw(address: str, name: str, instance: str) -> list[float]:
    """All samples that Prometheus has stored of a counter as this instance told it, in order."""
    labels = {"instance": instance.removeprefix("http://")} | COUNTERS[name]
    selector = ",".join(f'{label}="{value}"' for label, value in labels.items())
    try:
        answer = httpx.get(
            f"{address}/api/v1/query", params={"query": f"{name}{{{selector}}}[1h]"}, trust_env=False, timeout=30
        )
    except httpx.TransportError:
        return []
    found = answer.json()["data"]["result"] if answer.status_code == 200 else []
    return [float(value) for series in found for _, value in series["values"]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scraped", [False, True], ids=["asked directly", "by Prometheus"])
def test_a_killed_worker_is_counted_alike_by_the_database_a_scrape_and_prometheus(
    database_url: str, watcher: psycopg.Connection[Any], tmp_path: Path, scraped: bool
) -> None:
    environment = {"FLEET_METRICS": "127.0.0.1:0", "FLEET_SLOTS": "20"}
    with replicas(APP, 3, database_url, environment=environment) as crew, Running(tmp_path, database_url) as api:
        addresses = [address_of(crew, index) for index in range(3)] + [api.address]
        assert {counted(scrape(address, "/metrics/fleet")) for address in addresses} == {(0, 0, 0, 0)}
        if not scraped:
            kill_one(crew, watcher, addresses)
            return
        with prometheus(tmp_path, addresses) as server:
            eventually_sync(lambda: all(raw(server, "fleet_lease_expirations_total", each) for each in addresses))
            expected, victim = kill_one(crew, watcher, addresses)
            for address in addresses[:victim] + addresses[victim + 1 :]:
                for name, value in zip(COUNTERS, expected, strict=True):
                    eventually_sync(lambda name=name, at=address, to=value: raw(server, name, at)[-1:] == [to])  # type: ignore[misc]
                    stored = raw(server, name, address)
                    assert stored[0] == 0
                    assert stored == sorted(stored)


def kill_one(crew: Crew, watcher: psycopg.Connection[Any], addresses: list[str]) -> tuple[tuple[float, ...], int]:
    """Kill a worker that holds both kinds; return the counters that all the others told then, and its number."""
    lease, repeatable, unrepeatable = hold_both(watcher)
    victim = crew.holder(lease)
    expected = (1, unrepeatable, repeatable, 0)
    crew.kill(victim, signal.SIGKILL)
    cleared = "SELECT FROM fleet.lease WHERE id = %s AND cleared_at IS NOT NULL"
    eventually_sync(lambda: watcher.execute(cleared, (lease,)).fetchall())
    rows = watcher.execute("SELECT name, sum(value)::int FROM fleet.counter GROUP BY name").fetchall()
    assert dict(rows) == {"lease_expirations": 1, "dead_letters": unrepeatable, "reclaims": repeatable}
    for address in addresses[:victim] + addresses[victim + 1 :]:
        eventually_sync(lambda at=address: counted(scrape(at, "/metrics/fleet")) == expected)  # type: ignore[misc]
        samples = scrape(address, "/metrics/fleet")
        assert sample(samples, "fleet_workers", state="LIVE") == 2
        assert sample(samples, "fleet_dead_letters", queue="default", reason="lease_expired") == unrepeatable
    return expected, victim


def test_a_worker_tells_what_it_did_and_its_probes_say_how_it_stands(database_url: str, tmp_path: Path) -> None:
    with Running(tmp_path, database_url, "--metrics=127.0.0.1:0", "--slots=9", program=WORKER) as running:
        address = running.wait_for("metrics listening")["address"]
        eventually_sync(lambda: httpx.get(f"{address}/readyz", trust_env=False).status_code == 200)
        assert httpx.get(f"{address}/livez", trust_env=False).text == "alive\n"
        assert httpx.get(f"{address}/elsewhere", trust_env=False).status_code == 404
        before = scrape(address)
        assert sample(before, "fleet_tasks_finished_total", queue="default", task="nothing", outcome="succeeded") == 0
        for _ in range(3):
            nothing.submit_sync()
        again.submit_sync()
        eventually_sync(lambda: finished(scrape(address)) == 3)
        busy = scrape(address)
        assert sample(busy, "fleet_tasks_claimed_total", queue="default") == 4
        assert sample(busy, "fleet_task_run_seconds_count", task="nothing") == 3
        assert sample(busy, "fleet_task_wait_seconds_count", queue="default") == 4
        assert sample(busy, "fleet_worker_slots", state="busy") == 1
        assert sample(busy, "fleet_worker_slots", state="idle") == 8
        assert sample(busy, "fleet_heartbeat_last_success_timestamp_seconds") > time.time() - 60
        running.process.send_signal(signal.SIGTERM)
        eventually_sync(lambda: httpx.get(f"{address}/readyz", trust_env=False).status_code == 503)
        assert httpx.get(f"{address}/livez", trust_env=False).status_code == 200


def finished(samples: Samples) -> float:
    return sample(samples, "fleet_tasks_finished_total", queue="default", task="nothing", outcome="succeeded")


def test_metrics_are_told_while_the_event_loop_stands_still(database_url: str, tmp_path: Path) -> None:
    options = ("--metrics=127.0.0.1:0", "--ttl=2s")
    with Running(tmp_path, database_url, *options, program=WORKER, FLEET_STALL_LIMIT="600") as running:
        address = running.wait_for("metrics listening")["address"]
        stall.submit_sync(seconds=600)
        eventually_sync(lambda: sample(scrape(address), "fleet_event_loop_lag_seconds") > 2)
        assert httpx.get(f"{address}/livez", trust_env=False).status_code == 200  # no sooner than the limit


def test_each_of_several_processes_has_its_port_and_so_has_the_one_that_takes_its_place(
    database_url: str, tmp_path: Path, watcher: psycopg.Connection[Any]
) -> None:
    options = ("--metrics=127.0.0.1:0", "--processes=2")
    with Running(tmp_path, database_url, *options, program=WORKER) as running:
        eventually_sync(lambda: len(running.said("metrics listening")) == 2)
        addresses = {line["address"]: line["pid"] for line in running.said("metrics listening")}
        assert len(addresses) == 2
        address, pid = addresses.popitem()
        assert sample(scrape(address, "/metrics/fleet"), "fleet_up") == 1
        os.kill(pid, signal.SIGKILL)
        eventually_sync(lambda: len(running.said("metrics listening")) == 3)
        assert running.said("metrics listening")[-1]["address"] == address
        assert sample(scrape(address), "fleet_listener_up") in (0, 1)
        running.process.send_signal(signal.SIGTERM)
        assert running.ended() == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_a_port_that_is_taken_is_an_error_at_the_start(database_url: str, tmp_path: Path, processes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = (f"--metrics=127.0.0.1:{port - processes + 1}", f"--processes={processes}")
        with Running(tmp_path, database_url, *options, program=WORKER) as running:
            assert running.ended() == 6
            assert f"port {port} on 127.0.0.1 cannot be had" in running.words
            assert "--metrics" in running.words


@pytest.mark.timeout(120)
def test_a_database_that_hangs_makes_a_scrape_short_of_figures_and_not_long(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database = Database(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none", settings)
        (family,) = FleetMetrics(database).registry.collect()
        assert [(each.name, each.value) for each in family.samples] == [("fleet_up", 0)]
