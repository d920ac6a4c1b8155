"""The pytest plugin, in runs of pytest of its own: as a user has it, in tests of every kind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"psycopg", "sqlalchemy", "alembic", "pydantic", "docker", "testcontainers", "starlette", "click", "fleet.app"}

SHOP = """
from fleet import Context, Fleet
from fleet.testing import report

app = Fleet()

@app.task
def charge(ctx: Context, order: int) -> int:
    report(ctx, order=order)
    return order
"""

TESTS = """
import pytest
from fleet.testing import assert_submitted, drained, inline, submitted
from shop import app, charge

urls = []

def test_plain_with_a_database(fleet_app, fleet_database_url):
    urls.append(fleet_database_url)
    fleet_app(app)
    charge.submit_sync(order=7)
    assert_submitted(app, charge, order=7)

def test_each_test_has_an_empty_database(fleet_app, fleet_database_url):
    assert fleet_database_url not in urls
    fleet_app(app)
    assert submitted(app) == []

def test_plain_inline(fleet_sink):
    with inline(app):
        charge.submit_sync(order=8)
    assert [effect.args for effect in fleet_sink.effects] == [{"order": 8}]

@pytest.mark.anyio
async def test_drained(fleet_app, fleet_sink):
    async with fleet_app(app):
        await charge.submit(order=9)
        (ran,) = await drained(app)
    assert ran.result == 9
    assert len(fleet_sink.effects) == 1

@pytest.mark.anyio
async def test_through_a_proxy(fleet_app, fleet_proxy):
    import psycopg
    async with await psycopg.AsyncConnection.connect(fleet_proxy.url, autocommit=True) as connection:
        await connection.execute("SELECT 41 + 1")
    assert any("41 + 1" in crossing.statement for crossing in fleet_proxy.crossings)

def test_replicas_and_points(fleet_app, fleet_replicas, fleet_faultpoints, fleet_sink):
    points = fleet_faultpoints("handler.leave:charge")
    crew = fleet_replicas("shop:app", 1, environment=points.environment)
    fleet_app(app)
    charge.submit_sync(order=10)
    hit = points.wait("handler.leave:charge")
    assert hit.pid == crew[0].pid == fleet_sink.effects[0].pid

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


def run_pytest(folder: Path, url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest there with this plugin and anyio's alone, and every warning an error."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FLEET_", "PYTEST_", "PG"))}
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "FLEET_TEST_DATABASE_URL": url}
    plugins = ["-p", "fleet.testing.plugin", "-p", "anyio.pytest_plugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *plugins, *arguments],
        cwd=folder, env=kept | environment, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip


def test_its_fixtures_serve_tests_of_every_kind(tmp_path: Path, server_url: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(TESTS)
    done = run_pytest(tmp_path, server_url)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_its_fixtures_are_listed_with_what_they_are(tmp_path: Path, server_url: str) -> None:
    done = run_pytest(tmp_path, server_url, "--fixtures")
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("fleet_")]
    assert {
        "fleet_database_url",
        "fleet_app",
        "fleet_replicas",
        "fleet_sink",
        "fleet_faultpoints",
        "fleet_proxy",
    } <= set(listed)
    assert "no docstring" not in done.stdout.partition("fleet.testing.plugin")[2].partition("fixtures defined")[0]


def test_loading_it_imports_nothing_heavy() -> None:
    """It is loaded in every run of pytest of whoever has it installed."""
    program = "import sys, fleet.testing.plugin; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_every_public_name_is_where_it_is_said_to_be() -> None:
    from fleet import testing

    assert sorted(testing.__all__) == sorted(testing._HOMES)
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name


@pytest.mark.parametrize("name", ["replicas", "sink"])
def test_a_module_of_the_kit_is_never_hidden_by_a_name(name: str) -> None:
    """`from fleet.testing import replicas` must mean the same before and after somebody has imported the module."""
    from fleet import testing

    assert name not in testing.__all__
