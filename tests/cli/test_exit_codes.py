"""The exit codes, as `fleet --help` lists them, of every group of commands. 130 takes real processes."""

import signal
from collections.abc import Sequence
from uuid import UUID, uuid4

import click
import psycopg
import pytest

from fleet.cli import main
from fleet.cli.failures import ExitCode
from fleet.postgres import settle
from fleet.postgres.database import AsyncConnection
from fleet.task import Settlement, Succeeded
from tests import support
from tests.cli.conftest import Command
from tests.cli.test_dead import fail
from tests.cli.test_processes import start

NOWHERE = ("--database-url", "postgresql://127.0.0.1:1/nothing")
BARE = ("--database-url", "BARE")  # a database without the schema
SOUND = ("--database-url", "SOUND")  # one that loses nothing
SUM = ("task", "submit", "add", '{"a": 1}', "--app", "SHOP")

# Words in capitals stand for what the test has made.
CODES: dict[ExitCode, list[tuple[str, ...]]] = {
    ExitCode.OK: [
        ("task", "list"), ("task", "show", "DONE"), ("task", "cancel", "QUEUED"), SUM,
        ("dead", "list"), ("dead", "requeue", "DEAD"), ("dead", "discard", "DEAD"), ("dead", "discard", "--all", "--yes"),
        ("queue", "list"), ("queue", "pause", "default"), ("queue", "resume", "default"),
        ("worker", "list"), ("worker", "drain", "LIVE"),
        ("queue", "retain", "default", "30d"), ("db", "check"), ("db", "upgrade"), ("db", "sql"), ("db", "size"),
        ("health",), ("health", "--worker"), ("doctor", *SOUND), ("completion", "bash"), ("--version",),
        ("verify", "--database"), ("token", "list"), ("token", "create", "new", "--scope", "read"), ("token", "revoke", "ci"),
    ],
    ExitCode.CHECK_FAILED: [
        (*SUM, "--wait-timeout", "1ms"),
        ("health", *NOWHERE), ("health", *BARE), ("health", "--worker", *SOUND), ("doctor", *NOWHERE), ("doctor", *BARE),
    ],
    ExitCode.USAGE: [
        ("task", "show", "no-id"), (*SUM, "--delay", "soon"), ("task", "submit", "add", "{", "--app", "SHOP"),
        ("dead", "requeue"), ("dead", "list", "--code", "bad_luck"), ("queue", "pause", ""),
        ("worker", "run"), ("worker", "run", "nowhere_at_all:app"), ("worker", "run", "SHOP", "--ttl", "1ms"),
        ("db", "check", "--database-url", "postgresql://u:a@b@c/d"), ("db", "wurst"),
        ("health", "--wurst"), ("doctor", "--wurst"), ("completion", "csh"), ("wurst",),
        ("up", "--workers", "0"), ("demo", "--workers", "1"), ("api", "run", "SHOP", "--port", "70000"),
        ("bench", "drain", "--tasks", "many"), ("bench", "peers", "--only", "nobody"),
        ("verify",), ("verify", "nowhere_at_all", "--database"), ("token", "create", "ci"),
    ],
    ExitCode.DATABASE: [
        ("task", "list", *NOWHERE), ("task", "cancel", "DONE", *NOWHERE), (*SUM, *NOWHERE), ("dead", "list", *NOWHERE),
        ("dead", "discard", "DEAD", *NOWHERE), ("queue", "list", *NOWHERE), ("queue", "pause", "default", *NOWHERE),
        ("worker", "list", *NOWHERE), ("worker", "drain", "LIVE", *NOWHERE), ("worker", "run", "SHOP", *NOWHERE),
        ("verify", "--database", *NOWHERE), ("token", "list", *NOWHERE),
        ("db", "check", *NOWHERE), ("db", "upgrade", *NOWHERE), ("api", "run", "SHOP", "--port", "0", *NOWHERE),
    ],
    ExitCode.SCHEMA: [
        ("task", "list", *BARE), (*SUM, *BARE), ("dead", "list", *BARE), ("queue", "list", *BARE),
        ("queue", "pause", "default", *BARE), ("worker", "list", *BARE), ("worker", "run", "SHOP", *BARE),
        ("verify", "--database", *BARE), ("db", "check", *BARE), ("db", "size", *BARE),
        ("token", "revoke", "ci", *BARE), ("api", "run", "SHOP", "--port", "0", *BARE),
    ],
    ExitCode.NOT_FOUND: [
        ("task", "show", "UNKNOWN"), ("task", "cancel", "UNKNOWN"), ("task", "submit", "subtract", "--app", "SHOP"),
        ("dead", "requeue", "UNKNOWN"), ("dead", "discard", "UNKNOWN"),
        ("queue", "pause", "unknown"), ("queue", "resume", "unknown"), ("worker", "drain", "UNKNOWN"),
        ("verify", "nowhere_at_all"), ("token", "revoke", "nobody"),
    ],
    ExitCode.CONFLICT: [
        ("task", "cancel", "DONE"), ("dead", "requeue", "DONE"), ("dead", "discard", "QUEUED"), ("worker", "drain", "OVER"),
        (*SUM, "--idempotency-key", "taken"), ("token", "create", "ci", "--scope", "read"),
    ],
}  # fmt: skip
NAMELESS = ["health", "doctor", "task list", "dead list", "queue list", "worker list", "db check", "verify --database"]
INTERRUPTED = {
    "task list": "task", "task cancel DONE": "task", "dead requeue DEAD": "task", "queue pause default": "queue",
    "worker list": "lease", "worker drain LIVE": "lease", "db check": "fleet_alembic_version",
    "token list": "api_token", "health": "fleet_alembic_version", "doctor": "lease", "verify --database": "lease",
}  # fmt: skip


@pytest.fixture
async def made(
    connection: AsyncConnection, shop: str, empty_url: str, sound_url: str, fleet: Command
) -> dict[str, object]:
    """A task in each state that matters, workers, an app, and other databases."""
    (dead,) = await fail(connection, "one")
    lease = await support.new_lease(connection, worker="live", ttl=support.TTL * 100)
    done = await support.submit(connection)
    tasks = await support.claim_some(connection, lease)
    await settle.succeed(connection, lease, [Settlement(task, Succeeded("1")) for task in tasks])
    over = await support.new_lease(connection)
    await support.execute(connection, "UPDATE fleet.lease SET state = 'RELEASED' WHERE id = :id::uuid", id=over.id)
    assert (await fleet(*SUM[:3], '{"a": 2}', "--app", shop, "--idempotency-key", "taken")).code == 0
    assert (await fleet("token", "create", "ci", "--scope", "read")).code == 0
    queued: UUID = await support.submit(connection)
    ids = {"DEAD": dead, "DONE": done, "QUEUED": queued, "LIVE": lease.id, "OVER": over.id, "UNKNOWN": uuid4()}
    return ids | {"SHOP": shop, "BARE": empty_url, "SOUND": sound_url}


@pytest.mark.parametrize(
    ("code", "words"),
    [(code, words) for code, commands in CODES.items() for words in commands],
    ids=lambda value: value.name if isinstance(value, ExitCode) else " ".join(value),
)
async def test_a_command_ends_with_this_code(
    fleet: Command, made: dict[str, object], code: ExitCode, words: Sequence[str]
) -> None:
    outcome = await fleet(*(made.get(word, word) for word in words))
    assert outcome.code == code, outcome.err
    assert "Traceback" not in outcome.err
    if code > ExitCode.CHECK_FAILED:
        assert "Error: " in outcome.err
    if code in (ExitCode.USAGE, ExitCode.DATABASE, ExitCode.SCHEMA):
        assert outcome.out == ""


@pytest.mark.parametrize("words", NAMELESS)
async def test_without_a_database_it_is_3_also_for_a_probe(anywhere: Command, words: str) -> None:
    assert (await anywhere(*words.split())).code == ExitCode.DATABASE


@pytest.mark.parametrize("words", INTERRUPTED)
async def test_ctrl_c_ends_a_command_that_waits_with_130(
    fleet: Command, made: dict[str, object], database_url: str, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    for setting, value in {"TTL": "100s", "STATEMENT_TIMEOUT": "50s", "LOCK_TIMEOUT": "40s"}.items():
        monkeypatch.setenv(f"FLEET_{setting}", value)
    with psycopg.connect(database_url) as holder, psycopg.connect(database_url, autocommit=True) as watch:
        holder.execute(f"LOCK TABLE fleet.{INTERRUPTED[words]}".encode())
        pid = holder.info.backend_pid
        with start(*(made.get(word, word) for word in words.split())) as process:
            blocked = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
            support.eventually_sync(lambda: watch.execute(blocked, (pid,)).fetchall())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert b"interrupted" in err
    assert b"Traceback" not in err


def test_every_group_is_in_the_table() -> None:
    named = {words[0] for commands in CODES.values() for words in commands}
    assert {*main.list_commands(click.Context(main))} <= named
    assert {*CODES, ExitCode.INTERRUPTED} == {*ExitCode}
