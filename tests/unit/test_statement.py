"""SQL as psql, SQLAlchemy and psycopg read it, and what is shown of an address."""

from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fleet.config import Settings
from fleet.errors import ConfigurationError
from fleet.postgres.database import Database, Statement, array, is_data_error


@pytest.mark.parametrize(("text", "native"), [
    ("SELECT :a", "SELECT %(a)s"), ("SELECT :a::text, :b_c::int[]", "SELECT %(a)s::text, %(b_c)s::int[]"),
    ("SELECT '12:30'::time", "SELECT '12:30'::time"), ("SELECT a::text", "SELECT a::text"),
    ("SELECT 5 % 2, :a", "SELECT 5 %% 2, %(a)s"), ("\n SELECT 'a: b' \n", "SELECT 'a: b'"),
])  # fmt: skip
def test_named_parameters_become_those_of_psycopg_and_nothing_else_does(text: str, native: str) -> None:
    assert Statement(text).native.decode() == native


def test_an_array_is_written_as_postgresql_reads_it() -> None:
    assert (array([]), array([1, 2]), array(["a", "b"])) == ("{}", "{1,2}", "{a,b}")


@pytest.mark.parametrize(
    ("sqlstate", "data"), [("22P05", True), ("23505", True), ("40001", False), ("57014", False), (None, False)]
)
def test_an_error_of_data_is_told_from_trouble(sqlstate: str | None, data: bool) -> None:
    error = psycopg.errors.lookup(sqlstate)() if sqlstate else psycopg.OperationalError("gone")
    assert is_data_error(error) is data


def test_an_address_is_shown_without_its_password() -> None:
    assert "s3cret" not in Database("postgresql://ann:s3cret@host:5/db", Settings()).address


def test_an_address_that_cannot_be_read_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Database("postgresql://ann:s3cret@host:5/db?nonsense=1", Settings())
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg"])
def test_a_workers_sessions_are_read_committed_bounded_and_planned_once(scheme: str) -> None:
    database = Database(f"{scheme}://host/db?options=-c%20geqo%3Doff", Settings(ttl=timedelta(seconds=30)))
    values = conninfo_to_dict(database.conninfo("claim"))
    options = str(values["options"])
    assert (values["host"], values["dbname"], values["application_name"]) == ("host", "db", "fleet claim")
    assert values["target_session_attrs"] == "read-write"
    for option in (
        "geqo=off", "default_transaction_isolation=read\\ committed", "timezone=UTC",
        "plan_cache_mode=force_generic_plan", "enable_seqscan=off",
        "statement_timeout=10000", "lock_timeout=2000", "idle_in_transaction_session_timeout=15000",
    ):  # fmt: skip
        assert f"-c {option}" in options
    unbounded = str(conninfo_to_dict(database.conninfo("migrate", bounded=False))["options"])
    assert "timeout" not in unbounded.replace("tcp_user_timeout", "")
