"""Which database a command works on, and what is said when there is none. A password is never shown."""

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.cli.conftest import Command

SECRET = "s3cr3tw0rd"
NOWHERE = f"postgresql://somebody:{SECRET}@127.0.0.1:1/nothing"


async def test_the_option_goes_before_the_environment(
    anywhere: Command, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_DATABASE_URL", NOWHERE)
    assert (await anywhere("db", "check", "--database-url", database_url)).code == 0
    assert (await anywhere("db", "check")).code == 3


async def test_the_variable_goes_before_the_file_and_the_file_before_libpq(
    anywhere: Command, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")
    assert (await anywhere("db", "check")).code == 3
    file = tmp_path / "url"
    file.write_text(f"{database_url}\n")
    monkeypatch.setenv("FLEET_DATABASE_URL_FILE", str(file))
    assert (await anywhere("db", "check")).code == 0
    monkeypatch.setenv("FLEET_DATABASE_URL", NOWHERE)
    assert (await anywhere("db", "check")).code == 3


async def test_libpq_variables_name_a_database(
    anywhere: Command, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
    for part, value in conninfo_to_dict(database_url).items():
        monkeypatch.setenv(names[part], str(value))
    assert (await anywhere("db", "check")).code == 0


@pytest.mark.parametrize(
    "command", [("db", "check"), ("health",), ("task", "list"), ("worker", "drain", "x"), ("queue", "pause", "x")]
)
async def test_without_a_database_it_is_said_how_to_name_one(anywhere: Command, command: tuple[str, ...]) -> None:
    outcome = await anywhere(*command)
    assert (outcome.code, outcome.out) == (3, "")
    assert "--database-url" in outcome.err
    assert "FLEET_DATABASE_URL" in outcome.err


async def test_a_file_that_is_not_there_is_wrong_usage(anywhere: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_DATABASE_URL_FILE", "/nowhere/url")
    outcome = await anywhere("db", "check")
    assert outcome.code == 2
    assert "/nowhere/url" in outcome.err


@pytest.mark.parametrize(
    "command", [("db", "check"), ("db", "upgrade"), ("task", "list"), ("queue", "pause", "x"), ("worker", "list")]
)
async def test_a_database_that_does_not_answer_is_told_in_a_sentence(
    anywhere: Command, command: tuple[str, ...]
) -> None:
    outcome = await anywhere(*command, "--database-url", NOWHERE)
    assert (outcome.code, outcome.out) == (3, "")
    assert "cannot be reached" in outcome.err
    assert "127.0.0.1" in outcome.err
    assert SECRET not in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://somebody:%zz{SECRET}@127.0.0.1/x",
        f"postgresql://somebody:p@{SECRET}@127.0.0.1:1/x",
        f"postgresql://somebody:{SECRET}/@127.0.0.1:1/x",
        f"host=127.0.0.1 password=a {SECRET}",
        f"postgresql://127.0.0.1:{SECRET}",
    ],
)
async def test_a_password_that_breaks_the_url_is_not_shown(anywhere: Command, url: str) -> None:
    outcome = await anywhere("db", "check", "--database-url", url)
    assert outcome.code == 2
    assert "cannot be read" in outcome.err
    assert SECRET not in outcome.out + outcome.err


async def test_a_database_without_the_schema_is_told_to_upgrade(anywhere: Command, empty_url: str) -> None:
    for command in (("db", "check"), ("task", "list"), ("worker", "list"), ("queue", "pause", "x")):
        outcome = await anywhere(*command, "--database-url", empty_url)
        assert (outcome.code, outcome.out) == (4, "")
        assert "fleet db upgrade" in outcome.err


@pytest.mark.parametrize(("variable", "value"), [("FLEET_TTL", "soon"), ("FLEET_SLOTS", "few"), ("FLEET_TTL", "1ms")])
async def test_a_setting_that_cannot_hold_is_named(
    fleet: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    outcome = await fleet("task", "list")
    assert (outcome.code, outcome.out) == (2, "")
    assert variable.removeprefix("FLEET_").lower() in outcome.err.lower()


async def test_a_row_that_somebody_holds_ends_the_wait(
    fleet: Command, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_LOCK_TIMEOUT", "50ms")
    with psycopg.connect(database_url) as connection:
        connection.execute("INSERT INTO fleet.queue (name, paused) VALUES ('held', true)")
        connection.commit()
        connection.execute("SELECT FROM fleet.queue FOR UPDATE")
        outcome = await fleet("queue", "resume", "held")
    assert outcome.code == 3
    assert "did not answer in time" in outcome.err


async def test_a_user_without_the_right_is_told_so(fleet: Command, database_url: str) -> None:
    outcome = await fleet("task", "list", "--database-url", f"{database_url}?options=-c%20role%3Dpg_signal_backend")
    assert outcome.code == 3
    assert "permission denied" in outcome.err
