"""`fleet doctor`: each condition made true, found, mended by the very words that it prints, and gone."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from fleet import doctor
from fleet.config import Settings
from fleet.doctor import examination, server, tables, work
from fleet.postgres import examine, upkeep
from fleet.postgres.database import AsyncConnection, Database
from tests import support
from tests.cli.conftest import ROOT, Command, run_sql
from tests.cli.pooler import pooler
from tests.cli.test_dead import fail
from tests.cli.test_processes import read_all, start, terminal

Examine = Callable[..., Awaitable[dict[str, dict[str, Any]]]]


@pytest.fixture
def examine_all(anywhere: Command, sound_url: str) -> Examine:
    """The findings about the sound database, or another, by check."""

    async def run(url: str = sound_url) -> dict[str, dict[str, Any]]:
        outcome = await anywhere("doctor", "--database-url", url, "-o", "json")
        findings = outcome.json["findings"]
        assert outcome.code == (1 if any(each["verdict"] != "ok" for each in findings) else 0)
        assert outcome.json["healthy"] is (outcome.code == 0)
        return {each["check"]: each for each in findings}

    return run


def mend_by_sql(url: str, finding: dict[str, Any]) -> None:
    run_sql(url, *finding["mend"].split("; "))


@contextmanager
def role(url: str) -> Iterator[str]:
    """Lend the URL of the same database for a role that may only log in."""
    name = f"plain-{uuid4().hex[:8]}"
    run_sql(url, f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'")
    try:
        yield re.sub("//[^@]*@", f"//{name}:x@", url)
    finally:
        run_sql(url, f'DROP OWNED BY "{name}"', f'DROP ROLE "{name}"')


async def test_a_sound_database_has_nothing_but_ok(anywhere: Command, sound_url: str, examine_all: Examine) -> None:
    findings = await examine_all()
    assert {name: each["verdict"] for name, each in findings.items() if each["verdict"] != "ok"} == {}
    assert [*findings] == [check.name for check in doctor.CHECKS]
    assert not any(each["mend"] for each in findings.values())
    assert re.search(r"answers in \d+\.\d ms", findings["reach"]["evidence"])
    outcome = await anywhere("doctor", "--database-url", sound_url)
    assert (outcome.code, outcome.lines[0]) == (0, ["CHECK", "VERDICT", "EVIDENCE", "MEND"])
    assert outcome.lines[1][:2] == ["reach", "ok"]
    assert outcome.err == f"{len(doctor.CHECKS)} ok\n"


async def test_what_cannot_be_reached_is_one_finding(anywhere: Command) -> None:
    outcome = await anywhere("doctor", "--database-url", "postgresql://u:s3cret@127.0.0.1:1/x", "-o", "json")
    assert outcome.code == 1
    (finding,) = outcome.json["findings"]
    assert (finding["check"], finding["verdict"]) == ("reach", "problem")
    assert "cannot be reached" in finding["evidence"]
    assert "s3cret" not in outcome.out + outcome.err
    assert (await anywhere("doctor")).code == 3


@pytest.mark.fault("Database", "fsync off, unlogged tables")
@pytest.mark.parametrize(
    ("check", "verdict", "spoil", "evidence"),
    [
        ("durability", "problem", "ALTER DATABASE sound SET synchronous_commit = off", "run twice"),
        ("durability", "problem", "ALTER ROLE postgres IN DATABASE sound SET synchronous_commit = off", "database user"),
        ("durability", "problem", "ALTER ROLE postgres SET synchronous_commit = off", "source: user"),
        ("durability", "problem", "ALTER ROLE ALL SET synchronous_commit = off", "source: global"),
        ("durability", "problem", "ALTER SYSTEM SET full_page_writes = off", "half-written"),
        ("durability", "problem", "ALTER SYSTEM SET fsync = off", "damage the whole database"),
        ("tables", "problem", "ALTER TABLE fleet.task SET UNLOGGED; ALTER TABLE fleet.lease SET UNLOGGED", "lease, task: a"),
        ("isolation", "warning", "ALTER DATABASE sound SET default_transaction_isolation = 'serializable'", "serializable"),
        ("primary", "problem", "ALTER DATABASE sound SET default_transaction_read_only = on", "read-only"),
        ("vacuum", "warning", "BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'it''s'", "prepared transaction it's"),
    ],
)  # fmt: skip
async def test_each_setting_is_found_and_mended(
    sound_url: str, examine_all: Examine, monkeypatch: pytest.MonkeyPatch, check: str, verdict: str, spoil: str,
    evidence: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(tables, "OLD_SECONDS", 0.0)
    mended = re.sub("/[^/]*$", "/postgres", sound_url)  # a read-only database cannot be mended from inside
    with psycopg.connect(sound_url, autocommit=True) as connection:
        for statement in spoil.split("; "):
            connection.execute(statement.encode())
        if "SYSTEM" in spoil:
            connection.execute("SELECT pg_reload_conf()")
    found = (await support.eventually(lambda: seen(examine_all, check, verdict)))[check]
    assert evidence in found["evidence"]
    mend_by_sql(sound_url if check in ("vacuum", "tables") else mended, found)
    assert (await support.eventually(lambda: seen(examine_all, check, "ok")))[check]["mend"] is None


async def seen(examine_all: Examine, check: str, verdict: str) -> dict[str, dict[str, Any]]:
    """The findings, once a server that reloads its settings has done so."""
    findings = await examine_all()
    return findings if findings[check]["verdict"] == verdict else {}


async def test_a_missing_schema_and_a_newer_one_are_mended_differently(
    anywhere: Command, sound_url: str, examine_all: Examine
) -> None:
    run_sql(sound_url, "UPDATE fleet.fleet_alembic_version SET version_num = 'later'")
    newer = (await examine_all())["schema"]
    assert (newer["verdict"], newer["mend"]) == ("problem", "pip install -U pgfleet")
    run_sql(sound_url, "DROP SCHEMA fleet CASCADE")
    findings = await examine_all()
    assert (findings["schema"]["verdict"], findings["schema"]["mend"]) == ("problem", "fleet db upgrade")
    assert {findings[each]["verdict"] for each in ("leases", "queues", "dead letters", "connections")} == {"unknown"}
    assert (await anywhere("db", "upgrade", "--database-url", sound_url)).code == 0
    assert (await examine_all())["schema"]["verdict"] == "ok"


async def test_a_plain_role_is_told_what_it_may_not_see_and_needs_to_read_only(
    sound_url: str, examine_all: Examine
) -> None:
    with role(sound_url) as plain:
        findings = await examine_all(plain)
        for check in ("schema", "leases", "queues", "dead letters", "connections"):
            assert findings[check]["verdict"] == "unknown", check
            assert "permission denied" in findings[check]["evidence"]
        watching = findings["vacuum"]
        assert (watching["verdict"], watching["mend"][:17]) == ("unknown", "GRANT pg_read_all")
        assert {findings[each]["verdict"] for each in ("session", "notifications", "durability")} == {"ok"}
        mend_by_sql(sound_url, findings["leases"])
        mend_by_sql(sound_url, watching)
        assert {each["verdict"] for each in (await examine_all(plain)).values()} == {"ok"}


async def test_what_a_pooler_drops_is_found(
    sound_url: str, examine_all: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "NOTIFICATION_SECONDS", 0.1)
    with role(sound_url) as plain, pooler(plain) as pooled:
        findings = await examine_all(pooled)
        assert findings["notifications"]["verdict"] == "warning"
        assert findings["isolation"]["verdict"] == "ok"
        found = findings["session"]
        assert found["verdict"] == "problem"
        assert "statement_timeout is 0, not 10000" in found["evidence"]
        mend_by_sql(sound_url, found)
        assert (await examine_all(pooled))["session"]["verdict"] == "ok"
        run_sql(sound_url, "ALTER DATABASE sound SET default_transaction_isolation = 'repeatable read'")
        found = (await examine_all(pooled))["isolation"]
        assert found["verdict"] == "problem"
        assert "claims and reaping need read committed" in found["evidence"]
        mend_by_sql(sound_url, found)
        assert (await examine_all(pooled))["isolation"]["verdict"] == "ok"


async def test_too_few_connections_are_found_whoever_limits_them(sound_url: str, examine_all: Examine) -> None:
    with psycopg.connect(sound_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO fleet.lease (id, worker, host, pid, version, queues, slots, schema_min, schema_max, ttl,"
            " state, granted_at, renewed_at, expires_at) SELECT gen_random_uuid(), 'w', 'h', 1, '1', '{}', 1, 1, 1,"
            " '1 hour', 'LIVE', now(), now(),"
            " now() + interval '1 hour' FROM generate_series(1, 2)"
        )
    run_sql(sound_url, "ALTER DATABASE sound CONNECTION LIMIT 9")
    found = (await examine_all())["connections"]
    assert found["verdict"] == "problem"
    assert "of 9 that the database allows are free; each worker takes 6, and 2 are live" in found["evidence"]
    mend_by_sql(sound_url, found)
    run_sql(sound_url, "ALTER ROLE postgres CONNECTION LIMIT 12")
    held = [psycopg.connect(sound_url) for _ in range(6)]
    found = (await examine_all())["connections"]
    for each in held:
        each.close()
    assert found["verdict"] == "warning"
    assert "that the role allows" in found["evidence"]
    mend_by_sql(sound_url, found)
    assert "that the server allows" in (await examine_all())["connections"]["evidence"]


async def test_due_tasks_that_nobody_may_start_are_found_and_those_that_wait_are_not(
    fleet: Command, connection: AsyncConnection, database_url: str, examine_all: Examine
) -> None:
    async def found() -> tuple[str, str | None]:
        finding = (await examine_all(database_url))["queues"]
        return finding["verdict"], finding["mend"]

    await support.submit(connection, queue="later", delay=timedelta(hours=1))
    assert await found() == ("ok", None)
    await support.submit(connection, queue="it's")
    assert await found() == ("problem", """fleet worker run '--queue=it'"'"'s'""")
    await support.new_lease(connection, queues=["sums", "it's"], ttl=support.TTL * 100)
    assert await found() == ("ok", None)
    assert (await fleet("queue", "pause", "sums")).code == 0
    assert await found() == ("ok", None)  # nothing is due in it
    await support.submit(connection, queue="sums")
    assert await found() == ("warning", "fleet queue resume sums")
    assert (await fleet("queue", "resume", "sums")).code == 0
    assert await found() == ("ok", None)


async def test_an_overdue_lease_is_found_until_a_worker_runs(
    fleet: Command, shop: str, connection: AsyncConnection, database_url: str, examine_all: Examine
) -> None:
    lease = await support.new_lease(connection, ttl=support.TTL * 30)
    await support.expire_lease(connection, lease)
    found = (await examine_all(database_url))["leases"]
    assert (found["verdict"], found["mend"]) == ("warning", "fleet worker run")
    assert re.match(r"1 overdue, the longest for \d+\.\d s", found["evidence"])
    await connection.execute("UPDATE fleet.lease SET ttl = '1 s', expires_at = expires_at - interval '2 s'")
    assert (await examine_all(database_url))["leases"]["verdict"] == "problem"
    with start(*found["mend"].split()[1:], shop, "--ttl", "1s") as worker:
        await support.eventually(lambda: seen(lambda: examine_all(database_url), "leases", "ok"))
        await support.submit(connection, name="add", queue="sums", args='{"a": 1}')
        sessions = await support.eventually(lambda: sessions_of_a_worker_at_work(connection))
        worker.send_signal(signal.SIGTERM)
        worker.communicate()
    assert sessions == server.WORKER_CONNECTIONS - 1, "without the scout, which comes when it is needed"


async def sessions_of_a_worker_at_work(connection: AsyncConnection) -> int:
    """How many there are, once one of them settles."""
    rows = await support.execute(
        connection,
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name ~ '^fleet ' AND application_name NOT IN ('fleet test', 'fleet scout')",
    )
    return len(rows) if ("fleet settle",) in rows else 0


async def test_a_dead_letter_is_found_until_it_is_judged(
    fleet: Command, connection: AsyncConnection, database_url: str, examine_all: Examine
) -> None:
    await fail(connection, "one", "two")
    found = (await examine_all(database_url))["dead letters"]
    assert (found["verdict"], found["evidence"]) == ("warning", "2 wait for a person")
    assert "fleet dead discard" in found["mend"]
    assert (await fleet("dead", "discard", "--all", "--yes")).code == 0
    assert (await examine_all(database_url))["dead letters"]["verdict"] == "ok"


async def test_an_old_transaction_is_found_and_ended(
    sound_url: str, examine_all: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(sound_url) as old:
        old.execute("SELECT txid_current()")
        assert re.search(rf"session {old.info.backend_pid}, \d+ s old", (await examine_all())["vacuum"]["evidence"])
        monkeypatch.setattr(tables, "OLD_SECONDS", 0.0)
        found = (await examine_all())["vacuum"]
        assert (found["verdict"], found["mend"]) == ("warning", f"SELECT pg_terminate_backend({old.info.backend_pid})")
        monkeypatch.setattr(tables, "VERY_OLD_SECONDS", 0.0)
        assert (await examine_all())["vacuum"]["verdict"] == "problem"
        mend_by_sql(sound_url, found)
        await support.eventually(lambda: seen(examine_all, "vacuum", "ok"))
        with pytest.raises(psycopg.OperationalError):
            old.execute("SELECT 1")


@pytest.mark.parametrize(("seconds", "word"), [(3.0, "ahead of"), (-3.0, "behind")])
async def test_a_clock_that_is_wrong_is_told_in_milliseconds(sound_url: str, seconds: float, word: str) -> None:
    findings = doctor.examine(Database(sound_url, Settings()), clock=lambda: time.time() + seconds)
    (found,) = [each for each in findings if each.check == "clocks"]
    assert found.verdict is doctor.Verdict.WARNING
    measured = re.search(rf"is ([\d.]+) ms {word}", found.evidence)
    assert measured is not None
    assert float(measured[1]) == pytest.approx(3000, abs=100)
    assert "no lease is judged by it" in found.evidence


@pytest.mark.parametrize(
    ("opinion", "verdict", "mend"),
    [
        (server.server(examine.Server("14.9", 140009, in_recovery=False)), "problem", None),
        (server.server(examine.Server("15.0", 150000, in_recovery=False)), "ok", None),
        (
            server.primary((
                examine.Server("15", 150000, in_recovery=True),
                examine.Setting("default_transaction_read_only", "off", "default", "d", "r"),
            )),
            "problem",
            None,
        ),
        (
            server.durability([examine.Setting("fsync", "off", "command line", "d", "r")]),
            "problem",
            None,
        ),
        (
            tables.vacuum([upkeep.Holder("replication slot", "old", None, 2_000_000)]),
            "warning",
            "SELECT pg_drop_replication_slot('old')",
        ),
        (tables.vacuum([upkeep.Holder("replication slot in use", "s", None, 2_000_000)]), "warning", None),
        (tables.vacuum([upkeep.Holder("standby", "7", None, 1_000_000)]), "ok", None),
        (
            server.connections(examine.Connections("d", "r", 97, 95, -1, 9, -1, 9, 0)),
            "warning",
            "ALTER SYSTEM SET max_connections = 207",
        ),
        (
            work.queues([examine.WaitingQueue(f"q {n}", paused=False, served=False) for n in range(5)]),
            "problem",
            "fleet worker run '--queue=q 0' '--queue=q 1' '--queue=q 2'",
        ),
        (work.dead_letters(examine.COUNT_MAX + 1), "warning", None),
    ],
)  # fmt: skip
def test_what_no_test_server_shows_is_judged_from_the_facts(
    opinion: doctor.Opinion, verdict: str, mend: str | None
) -> None:
    assert opinion.verdict == verdict
    if mend is not None or verdict == "ok":
        assert opinion.mend == mend


async def test_a_session_that_ends_meanwhile_is_said(
    sound_url: str, monkeypatch: pytest.MonkeyPatch, examine_all: Examine
) -> None:
    def end(site: examine.Site) -> None:
        run_sql(sound_url, f"SELECT pg_terminate_backend({site.connection.info.backend_pid}, 5000)")
        site.connection.execute("SELECT 1")

    check: doctor.Check[None] = doctor.Check("end", end, server.notifications)
    monkeypatch.setattr(examination, "CHECKS", [doctor.CHECKS[0], check])
    (found,) = (await examine_all()).values()
    assert (found["check"], found["verdict"]) == ("reach", "problem")
    assert "cannot be reached" in found["evidence"]


def test_a_terminal_gets_words_and_marks_and_the_whole_of_what_mends(
    sound_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    run_sql(sound_url, "ALTER DATABASE sound SET synchronous_commit = off")
    with terminal() as (person, program), start("doctor", "--database-url", sound_url, stdout=program) as process:
        os.close(program)
        shown = read_all(person).decode().splitlines()
        assert process.wait() == 1
    assert any(line.startswith("✓ ok       reach") for line in shown)
    assert any(line.startswith("✗ problem  durability") for line in shown)
    mend = 'ALTER DATABASE "sound" RESET synchronous_commit'
    assert any(line.strip() == f"mend: {mend}" for line in shown)


async def test_a_statement_that_takes_too_long_is_unknown(
    sound_url: str, examine_all: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_LOCK_TIMEOUT", "50ms")
    with psycopg.connect(sound_url) as connection:
        connection.execute("LOCK TABLE fleet.lease")
        findings = await asyncio.wait_for(examine_all(), 20)
    assert (findings["leases"]["verdict"], findings["vacuum"]["verdict"]) == ("unknown", "ok")
    assert "lock timeout" in findings["leases"]["evidence"]


def test_the_guide_tells_of_every_check_in_order() -> None:
    guide = (ROOT / "docs" / "guides" / "doctor.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| check \|.*?\n\n", guide, re.DOTALL)
    assert re.findall(r"^\| ([a-z -]+) \|", table, re.MULTILINE)[1:] == [check.name for check in doctor.CHECKS]


async def test_a_finding_that_is_accepted_is_shown_and_does_not_count(
    anywhere: Command, connection: AsyncConnection, database_url: str, sound_url: str
) -> None:
    run_sql(sound_url, "ALTER DATABASE sound SET synchronous_commit = off")
    where = ("doctor", "--database-url", sound_url)
    assert (await anywhere(*where)).code == (await anywhere(*where, "--accept", "tables")).code == 1
    accepted = await anywhere(*where, "--accept", "durability", "-o", "json")
    assert (accepted.code, accepted.json["healthy"]) == (0, True)
    assert [each["check"] for each in accepted.json["findings"] if each["verdict"] == "problem"] == ["durability"]
    unknown = await anywhere(*where, "--accept", "durabilty")
    assert (unknown.code, unknown.out) == (2, "")
    assert "there is no check 'durabilty'; there are: reach, " in unknown.err
