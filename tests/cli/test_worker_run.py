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

    def run(commands: Sequence[supervisor.Command], database: Database, settings: Settings, events: Events) -> int:
        seen.extend([list(commands[0].arguments), len(commands), settings, os.environ["FLEET_DATABASE_URL"]])
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


OPINIONATED = """
from datetime import timedelta
from fleet import Fleet, Settings

app = Fleet({url!r}, settings=Settings(slots=5, ttl=timedelta(seconds=5), poll=timedelta(seconds=0.25)))


@app.task
def nothing() -> None: ...
"""


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of the processes that would have run."""
    seen: list[Settings] = []

    def run(commands: object, database: Database, settings: Settings, events: Events) -> int:
        assert database.settings is settings
        seen.append(settings)
        return 0

    monkeypatch.setattr(supervisor, "run", run)
    return seen


async def test_options_go_before_the_environment_and_that_before_the_app(
    fleet: Command, settings: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_settings.py").write_text(OPINIONATED.format(url=None))
    run = ("worker", "run", "own_settings:app", "--processes", 2)

    async def chosen(*options: object) -> tuple[int, float, float]:
        assert (await fleet(*run, *options)).code == 0
        found = settings[-1]
        return found.slots, found.ttl.total_seconds(), found.drain_timeout.total_seconds()

    assert await chosen() == (5, 5, 5)
    monkeypatch.setenv("FLEET_SLOTS", "6")
    monkeypatch.setenv("FLEET_TTL", "6s")
    assert await chosen() == (6, 6, 6)  # what follows from the TTL follows from the new one
    monkeypatch.setenv("FLEET_DRAIN_TIMEOUT", "9s")
    assert await chosen("--slots", 7) == (7, 6, 9)
    assert await chosen("--ttl", "7s", "--drain-timeout", "8s") == (6, 7, 8)
    assert settings[-1].poll == timedelta(seconds=0.25)  # the app's own, which nobody overrides


async def test_without_the_app_s_word_the_defaults_hold(fleet: Command, shop: str, settings: list[Settings]) -> None:
    assert (await fleet("worker", "run", shop, "--processes", 2)).code == 0
    assert settings == [Settings()]


async def test_a_database_that_only_the_app_names_is_used_and_any_other_word_goes_before(
    anywhere: Command, settings: list[Settings], tmp_path: Path, database_url: str, empty_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "own_database.py").write_text(OPINIONATED.format(url=database_url))
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")
    run = ("worker", "run", "own_database:app", "--processes", 2)
    assert (await anywhere(*run)).code == 0
    submitted = await anywhere("task", "submit", "nothing", "--app", "own_database:app", "-o", "json")
    assert (submitted.code, submitted.json["created"]) == (0, True)
    monkeypatch.setenv("FLEET_DATABASE_URL", empty_url)
    assert (await anywhere(*run)).code == 4
    assert (await anywhere("task", "submit", "nothing", "--app", "own_database:app")).code == 4
    assert (await anywhere(*run, "--database-url", database_url)).code == 0


async def test_the_app_option_goes_before_the_variable(
    fleet: Command, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_APP", "nowhere_at_all:app")
    assert (await fleet("task", "submit", "add", '{"a": 1}')).code == 2
    assert (await fleet("task", "submit", "add", '{"a": 1}', "--app", shop)).code == 0


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


@pytest.mark.fault("Deploy", "a binary older than the schema")
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
