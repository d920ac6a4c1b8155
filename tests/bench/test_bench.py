"""The benchmarks run from end to end and say what they found. How fast that was is judged by nobody here."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fleet.embedded import temporary

ROOT = Path(__file__).resolve().parents[2]
NOBODY_LISTENS = "postgresql://postgres@127.0.0.1:1/postgres"


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A PostgreSQL 18 on this machine, whatever the other tests run on: the benchmarks read its processor time."""
    with temporary({"fsync": "off"}) as server:
        yield server.url


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLEET_", "PG"))}
    command = [sys.executable, "-m", "fleet", "bench", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, check=False, timeout=60
    )


def test_drain_tells_its_figures_as_one_json_object_and_leaves_no_database_behind(server_url: str) -> None:
    done = bench("drain", "--tasks=300", "--rounds=1", "--slots=16", "--output=json", FLEET_BENCH_SERVER_URL=server_url)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["scenario"] == "drain"
    assert found["tasks_per_second"] > 0
    assert found["ratio_to_ceiling"] > 0
    assert (found["setup"]["tasks"], found["setup"]["slots"]) == (300, 16)
    assert server_url not in done.stdout + done.stderr
    with psycopg.connect(server_url) as connection:
        names = connection.execute("SELECT datname FROM pg_database WHERE NOT datistemplate").fetchall()
    assert names == [("postgres",)]


def test_a_server_that_cannot_be_reached_is_named_in_one_sentence() -> None:
    done = bench("drain", "--tasks=300", "--server-url", NOBODY_LISTENS)
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
