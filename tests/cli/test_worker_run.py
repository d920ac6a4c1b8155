"""`fleet worker run`: what it makes of its options; what a worker then does is tested elsewhere."""

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg_pool import PoolTimeout

from fleet.config import Settings
from fleet.events import Events
from fleet.postgres.database import Database
from fleet.worker import runner, supervisor
from fleet.worker.process import Worker
from tests.cli.conftest import Command


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The workers that would have run; each ends with code 7."""
    workers: list[Worker] = []

    def run(worker: Worker) -> int:
        workers.append(worker)
        return 7

    monkeypatch.setattr(runner, "run", run)
    return workers


async def test_one_process_runs_the_app_with_these_options(fleet: Command, shop: str, ran: list[Worker]) -> None:
    outcome = await fleet("worker", "run", shop, "--queue", "a", "--queue", "b", "--name", "adder", "--ttl", "3s")
    assert (outcome.code, outcome.out) == (7, "")
    (worker,) = ran
    assert (worker.name, worker.queues) == ("adder", ("a", "b"))


async def test_the_app_may_be_named_by_the_environment(
    fleet: Command, shop: str, ran: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_APP", shop)
    assert (await fleet("worker", "run")).code == 7
    assert ran[0].queues == ("default", "sums")


async def test_several_processes_get_the_same_options_and_no_secret(
    anywhere: Command, database_url: str, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(command: Sequence[str], processes: int, database: Database, settings: Settings, events: Events) -> int:
        seen.extend([list(command), processes, settings, os.environ["FLEET_DATABASE_URL"]])
        return 0

    monkeypatch.setattr(supervisor, "run", run)
    monkeypatch.setenv("FLEET_DATABASE_URL", "")
    outcome = await anywhere(
        *("worker", "run", shop, "--processes", 3, "--queue", "a", "--slots", 5, "--ttl", "2s", "--log", "json"),
        *("--name", "-odd name", "--database-url", database_url),
    )
    assert outcome.code == 0
    command, processes, settings, url = seen
    assert command[:6] == [sys.executable, "-m", "fleet", "worker", "run", shop]
    assert command[6:] == ["--queue=a", "--slots=5", "--ttl=2.0s", "--name=-odd name", "--log=json", "--log-level=info"]
    assert (processes, settings.slots, settings.ttl, url) == (3, 5, timedelta(seconds=2), database_url)
    assert not any(database_url in word for word in command)


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("nowhere_at_all:app", "no module 'nowhere_at_all'"),
        ("{shop}:missing", "it has: app"),
        ("{shop}:no_app", "is a int, not a Fleet"),
        ("{shop}", "MODULE:APP"),
        ("broken:app", "ZeroDivisionError"),
        ("broken:app", "broken.py, line 2"),
        ("needy:app", "No module named 'not_installed'"),
    ],
)
async def test_an_app_that_cannot_be_had_is_explained(
    fleet: Command, shop: str, tmp_path: Path, app: str, words: str
) -> None:
    (tmp_path / "broken.py").write_text("def f() -> None: ...\n1 / 0\n")
    (tmp_path / "needy.py").write_text("import not_installed\n")
    outcome = await fleet("worker", "run", app.format(shop=shop.split(":", maxsplit=1)[0]))
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "Traceback" not in outcome.err


async def test_without_an_app_it_is_said_how_to_name_one(fleet: Command) -> None:
    outcome = await fleet("worker", "run")
    assert outcome.code == 2
    assert "FLEET_APP" in outcome.err


async def test_settings_that_cannot_hold_are_refused(fleet: Command, shop: str) -> None:
    for options in (["--ttl", "1ms"], ["--ttl", "soon"], ["--slots", "0"], ["--processes", "0"]):
        outcome = await fleet("worker", "run", shop, *options)
        assert outcome.code == 2, options


@pytest.mark.usefixtures("later_schema")
async def test_no_worker_starts_on_a_schema_that_does_not_fit(fleet: Command, shop: str, ran: list[Worker]) -> None:
    assert (await fleet("worker", "run", shop)).code == 4
    assert ran == []


async def test_an_error_of_the_apps_own_database_keeps_its_traceback(
    fleet: Command, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(worker: Worker) -> int:
        raise PoolTimeout("the shop's own database")

    monkeypatch.setattr(runner, "run", run)
    with pytest.raises(RuntimeError) as caught:
        await fleet("worker", "run", shop)
    assert isinstance(caught.value.__cause__, PoolTimeout)
