"""Faults planted for real: `fleet doctor` names each, and what it prints mends it. See also cli/test_doctor.py."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from click.testing import CliRunner

from fleet.cli import main
from fleet.config import Settings
from fleet.embedded import Server, temporary
from fleet.postgres import migrate
from fleet.postgres.database import Database
from fleet.postgres.grants import Role
from tests.conformance.pooler import Pooler
from tests.conformance.room import room
from tests.postgres.roles import House, house
from tests.support import eventually_sync

LEASE = (
    "INSERT INTO fleet.lease (id, worker, host, pid, version, queues, slots, schema_min, schema_max, ttl, state, granted_at,"
    " renewed_at, expires_at)"
    " SELECT gen_random_uuid(), 'w', 'h', 1, '{version}', '{{}}', 1, 1, 2, '1 day', 'LIVE', clock_timestamp(), now(),"
    " now() + interval '1 day'"
)
FOREIGN_BODY = "CREATE OR REPLACE FUNCTION fleet.wake() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL;\nEND'"
DEAD_ROWS = (
    "INSERT INTO fleet.submission (scope, key, task_id, fingerprint)"
    " SELECT '', number::text, gen_random_uuid(), '' FROM generate_series(1, 20000) AS number"
)


@dataclass(frozen=True)
class Fault:
    """Statements that plant a fault, the check that must name it, words of its evidence, and who asks (None: anybody)."""

    check: str
    words: str
    plant: str
    asks: str | None = None
    clean_up: str = "SELECT"
    beside: set[str] = field(default_factory=set)  # other checks that rightly find something too


FAULTS = {
    "an index is missing": Fault("objects", "index task_ready of task is missing", "DROP INDEX fleet.task_ready"),
    "an index is another": Fault(
        "objects", "index task_dead of task is changed",
        "DROP INDEX fleet.task_dead; CREATE INDEX task_dead ON fleet.task (id)",
    ),
    "an index is invalid": Fault(
        "objects", "(invalid)", "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'fleet.task_running'::regclass"
    ),
    "a trigger is missing": Fault("objects", "trigger wake of task is missing", "DROP TRIGGER wake ON fleet.task"),
    "a trigger is off": Fault("objects", "(disabled)", "ALTER TABLE fleet.task DISABLE TRIGGER wake"),
    "a function is missing": Fault("objects", "function fleet.wake() is missing", "DROP FUNCTION fleet.wake() CASCADE"),
    "a function is another": Fault("objects", "function fleet.wake() is changed", FOREIGN_BODY),
    "a column is missing": Fault(
        "objects", "column timeout of task is missing", "ALTER TABLE fleet.task DROP COLUMN timeout"
    ),
    "a column has another type": Fault(
        "objects", "column generation of queue is changed: integer", "ALTER TABLE fleet.queue ALTER generation TYPE int"
    ),
    "a column may be null": Fault(
        "objects", "not null generation of queue is changed", "ALTER TABLE fleet.queue ALTER generation DROP NOT NULL"
    ),
    "a column has no default": Fault(
        "objects", "default priority of task is changed: none", "ALTER TABLE fleet.task ALTER priority DROP DEFAULT"
    ),
    "a column counts no more": Fault(
        "objects", "default id of audit is changed: none", "ALTER TABLE fleet.audit ALTER id DROP IDENTITY"
    ),
    "a constraint is missing": Fault(
        "objects", "constraint task_held of task is missing", "ALTER TABLE fleet.task DROP CONSTRAINT task_held"
    ),
    "a primary key is missing": Fault(
        "objects", "constraint counter_pkey of counter is missing",
        "ALTER TABLE fleet.counter DROP CONSTRAINT counter_pkey",
    ),
    "a table's autovacuum settings are gone": Fault(
        "objects", "option autovacuum_vacuum_scale_factor of task is missing",
        "ALTER TABLE fleet.task RESET (autovacuum_vacuum_scale_factor)",
    ),
    "autovacuum is off": Fault("autovacuum", "autovacuum = off", "ALTER SYSTEM SET autovacuum = off"),
    "nothing is counted": Fault("autovacuum", "track_counts = off", "ALTER DATABASE patient SET track_counts = off"),
    "autovacuum is kept off a table": Fault(
        "autovacuum", "kept off task", "ALTER TABLE fleet.task SET (autovacuum_enabled = false)"
    ),
    "dead rows are piled up": Fault(
        "autovacuum", "submission has 20,000 dead rows",
        f"ALTER TABLE fleet.submission SET (autovacuum_enabled = false); {DEAD_ROWS}; DELETE FROM fleet.submission;"
        " SELECT pg_stat_force_next_flush()",
    ),
    "commits wait for a standby that is not there": Fault(
        "standbys", "no commit ends", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'"
    ),
    **{
        f"{name} is short": Fault("time-outs", f"{name} = {value} ms", f"ALTER DATABASE patient SET {name} = {value}")
        for name, value in [
            ("statement_timeout", 5000), ("lock_timeout", 300), ("idle_in_transaction_session_timeout", 2000),
            ("transaction_timeout", 30000), ("idle_session_timeout", 60000),
        ]
    },
    "workers of two versions": Fault(
        "workers", "1 live of version 0.2, 2 live of version 0.1",
        f"{LEASE.format(version='0.1')} FROM generate_series(1, 2); {LEASE.format(version='0.2')}",
        clean_up="DELETE FROM fleet.lease",
    ),
    "a worker may not prune": Fault(
        "privileges", "lacks what the worker needs: DELETE on task", "REVOKE DELETE ON fleet.task FROM {worker}", "worker"
    ),
    "a worker may not renew": Fault(
        "privileges", "UPDATE on lease", "REVOKE UPDATE, INSERT ON fleet.lease FROM {worker}", "worker"
    ),
    "the API may not leave a trace": Fault(
        "privileges", "lacks what the api needs: INSERT on audit", "REVOKE INSERT ON fleet.audit FROM {api}", "api"
    ),
    "the API may not cancel": Fault(
        "privileges", "UPDATE (state, run_at, ", "REVOKE UPDATE (state) ON fleet.task FROM {api}", "api"
    ),
    "a reader may not read": Fault(
        "privileges", "SELECT on counter", "REVOKE SELECT ON fleet.counter FROM {reader}", "reader"
    ),
    "a reader may not enter": Fault(
        "privileges", "USAGE on the schema", "REVOKE USAGE ON SCHEMA fleet FROM {reader}", "reader",
        beside={"schema", "objects", "connections", "workers", "leases", "queues", "dead letters"},
    ),
    "a reader may not watch": Fault(
        "vacuum", "not shown what other sessions do", "REVOKE pg_read_all_stats FROM {reader}", "reader"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose commits are durable, and whose settings may be spoilt."""
    with temporary({"max_connections": "60"}) as server:
        yield server


@pytest.fixture(scope="module")
def patient(server: Server) -> Iterator[House]:
    """A database with the schema and the roles."""
    run_sql(server.url, "CREATE DATABASE patient")
    url = server.url_of("patient")
    migrate.upgrade(Database(url, Settings()))
    with house(url) as roles:
        for who in ("worker", "api"):  # a worker's and an API's own user sees nobody else's sessions
            run_sql(url, f'GRANT pg_read_all_stats TO "{roles.names[Role(who)]}"')
        yield roles


def run_sql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def fleet(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def examine(url: str, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code of `fleet doctor`, and its findings that are not ok."""
    code, out = fleet("doctor", "--database-url", url, "-o", "json", *options)
    return code, {each["check"]: each for each in json.loads(out)["findings"] if each["verdict"] != "ok"}


def is_clean(url: str) -> bool:
    return examine(url) == (0, {})


def carry_out(url: str, mend: str) -> None:
    """Do what a finding says: a command of ours, or what a person pastes into psql."""
    for each in mend.split("; "):
        if each.startswith("fleet "):
            assert fleet(*shlex.split(each)[1:], "--database-url", url)[0] == 0
        else:
            run_sql(url, each)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_what_is_printed_mends_it(patient: House, name: str) -> None:
    fault = FAULTS[name]
    url = patient.url_of(fault.asks) if fault.asks else patient.url
    names = {role.value: f'"{patient.names[role]}"' for role in Role}
    planted = fault.plant if fault.asks is None else fault.plant.format(**names)
    try:
        run_sql(patient.url, *planted.split("; "), "SELECT pg_reload_conf()")
        found = eventually_sync(lambda: fault.check in (seen := examine(url))[1] and seen)
        assert found
        code, findings = found
        assert code == 1
        assert set(findings) - fault.beside == {fault.check}
        assert fault.words in findings[fault.check]["evidence"]
        carry_out(patient.url, findings[fault.check]["mend"])
        eventually_sync(lambda: is_clean(url))
    finally:
        run_sql(patient.url, *fault.clean_up.split("; "))


@pytest.mark.parametrize("who", ["owner", "migrator", "worker", "api", "reader"])
def test_each_role_may_ask_the_doctor(patient: House, who: str) -> None:
    """The owner and the migrator are not shown what other sessions do; everybody else finds nothing."""
    code, findings = examine(patient.url_of(who))
    hidden = {"vacuum"} if who in ("owner", "migrator") else set()
    assert set(findings) == hidden
    assert code == (1 if hidden else 0)
    assert examine(patient.url_of(who), *(f"--accept={each}" for each in hidden))[0] == 0


def test_a_user_without_any_role_is_told_what_a_reader_needs(patient: House) -> None:
    found = examine(patient.url_of("nobody"))[1]["privileges"]
    assert "USAGE on the schema" in found["evidence"]
    try:
        carry_out(patient.url, found["mend"])
        assert set(examine(patient.url_of("nobody"))[1]) == {"vacuum"}
    finally:
        run_sql(patient.url, f'DROP OWNED BY "{patient.prefix}_nobody_user"')


def test_a_pooler_in_transaction_mode_is_told_by_what_it_does(patient: House, monkeypatch: pytest.MonkeyPatch) -> None:
    user = urlsplit(patient.url).username
    with room() as lent:
        pooler = Pooler(lent, patient.url).start()
        url = pooler.url
        code, findings = examine(url)
        assert code == 1
        assert set(findings) == {"pooler", "session", "notifications"}
        assert "two sessions were given the same backend" in findings["pooler"]["evidence"]
        assert "pool_mode = session" in findings["pooler"]["evidence"]
        assert findings["pooler"]["mend"] == "export FLEET_PREPARED_STATEMENTS=off"
        monkeypatch.setenv(*findings["pooler"]["mend"].removeprefix("export ").split("="))
        try:
            carry_out(patient.url, findings["session"]["mend"])
            pooler.ask("RECONNECT")  # the sessions that it has to the server are as of when they began
            eventually_sync(lambda: set(examine(url)[1]) == {"notifications"})
            assert examine(url, "--accept", "notifications")[0] == 0
        finally:
            run_sql(patient.url, f'ALTER ROLE "{user}" RESET ALL')


def test_a_pooler_in_session_mode_is_as_good_as_none(patient: House) -> None:
    with room() as lent:
        pooler = Pooler(lent, patient.url, settings={"pool_mode": "session"})
        code, out = fleet("doctor", "--database-url", pooler.start().url, "-o", "json")
    (found,) = [each for each in json.loads(out)["findings"] if each["check"] == "pooler"]
    assert (found["verdict"], found["evidence"][:20]) == ("ok", "one in session mode:"), (code, out)
