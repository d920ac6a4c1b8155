"""Commands as real processes: signals, terminals, and a worker that works."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from fleet.postgres.database import AsyncConnection
from fleet.postgres.migrate import MIGRATOR
from tests import support
from tests.cli.conftest import ROOT, Command
from tests.cli.test_dead import fail, states

ESCAPE = "\x1b"


def start(*arguments: object, **options: int) -> "subprocess.Popen[bytes]":
    """Start `python -m fleet`; where nothing else is said, output goes to pipes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb"}
    streams: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(
        [sys.executable, "-m", "fleet", *map(str, arguments)],
        env=environment,
        stdin=streams.get("stdin"),
        stdout=streams["stdout"],
        stderr=streams["stderr"],
    )


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Lend both ends of a terminal: the person's and the program's."""
    person, program = os.openpty()
    try:
        yield person, program
    finally:
        os.close(person)
        with suppress(OSError):  # a test closes it itself where it waits for the end of the program
            os.close(program)


def read_until(descriptor: int, mark: bytes) -> bytes:
    seen = b""
    while mark not in seen:
        more = os.read(descriptor, 4096)
        assert more, seen
        seen += more
    return seen


def read_all(descriptor: int) -> bytes:
    """Read until the program has left its terminal."""
    seen = b""
    with suppress(OSError):
        while more := os.read(descriptor, 4096):
            seen += more
    return seen


def test_an_interrupted_command_ends_with_130(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_DATABASE_URL", database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (MIGRATOR,))
        with start("db", "upgrade") as process:
            question = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = %s::oid"
            oid = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
            support.eventually_sync(lambda: connection.execute(question, oid).fetchall())
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
    assert process.returncode == 130
    assert b"interrupted" in err
    assert b"Traceback" not in err


async def test_only_the_failures_counted_in_the_question_are_requeued(
    fleet: Command, connection: AsyncConnection
) -> None:
    ids = await fail(connection, "one", "two")
    with terminal() as (person, program), start("dead", "requeue", "--all", stdin=program) as process:
        assert process.stderr is not None
        read_until(process.stderr.fileno(), b"requeue them?")
        assert (await fleet("dead", "requeue", ids[0])).code == 0
        (task,) = await support.claim_some(connection, await support.new_lease(connection), name="one")
        await support.execute(
            connection,
            "UPDATE fleet.task SET state = 'FAILED', lease_id = NULL, failure_code = 'timeout' WHERE id = :id::uuid",
            id=task.id,
        )
        later = await fail(connection, "three")
        os.write(person, b"y\n")
        out, err = process.communicate()
    assert (process.returncode, out) == (0, b"")
    assert b"1 requeued" in err
    assert b"1 changed meanwhile" in err
    assert await states(connection, [*ids, *later]) == [("FAILED", False), ("QUEUED", False), ("FAILED", False)]


async def test_no_is_an_answer(fleet: Command, connection: AsyncConnection) -> None:
    ids = await fail(connection, "one")
    with terminal() as (person, program), start("dead", "discard", "--all", stdin=program) as process:
        os.write(person, b"n\n")
        _, err = process.communicate()
    assert process.returncode == 1
    assert b"nothing was changed" in err
    assert await states(connection, ids) == [("FAILED", False)]


@pytest.mark.fault("Payloads", "HTML and ANSI in names and errors")
async def test_a_terminal_gets_a_table_and_nothing_that_it_would_act_upon(
    fleet: Command, connection: AsyncConnection
) -> None:
    (task_id,) = await fail(
        connection, f"{ESCAPE}[31mred", reason=f"[bold]{ESCAPE}]0;title\x07 {ESCAPE}[2J\u202e<b>x</b>"
    )
    with terminal() as (person, program), start("dead", "list", stdout=program) as process:
        os.close(program)
        shown = read_all(person).decode()
        assert process.wait() == 0
    assert ESCAPE not in shown
    assert "\u202e" not in shown
    assert "[bold]" in shown
    assert str(task_id) in shown  # however narrow the terminal
    assert "─" in shown


@pytest.mark.fault("Payloads", "HTML and ANSI in names and errors")
async def test_nothing_raw_reaches_a_pipe_either(fleet: Command, connection: AsyncConnection) -> None:
    (task_id,) = await fail(connection, f"{ESCAPE}[31mred", reason=f"a\tb{ESCAPE}[2J\x9b1m\nsecond\rline")
    for command in (("dead", "list"), ("task", "list"), ("task", "show", task_id)):
        for output in ("table", "json"):
            outcome = await fleet(*command, "-o", output)
            assert outcome.code == 0
            assert not {ESCAPE, "\x9b", "\r"} & set(outcome.out), command


def test_output_without_unicode_is_no_reason_to_fail(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_DATABASE_URL", database_url)
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("INSERT INTO fleet.queue (name) VALUES ('gr→n')")
    with start("queue", "list") as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    assert rb"gr\u2192n" in out


async def test_a_worker_works_until_it_is_told_to_stop(
    fleet: Command, shop: str, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_APP", shop)
    with start("worker", "run", "--ttl", "2s", "--log", "json", "--log-level", "debug") as process:
        try:
            added = (await fleet("task", "submit", "add", '{"a": 1, "b": 2}')).out.strip()
            refused = (await fleet("task", "submit", "pay", '{"card": "4111-1111"}')).out.strip()

            async def both_ended() -> bool:
                rows = await support.execute(
                    connection, "SELECT 1 FROM fleet.task WHERE state IN ('SUCCEEDED', 'FAILED')"
                )
                return len(rows) == 2

            await support.eventually(both_ended)
        finally:
            process.terminate()
            out, err = process.communicate()
    assert (process.returncode, out) == (0, b"")
    assert (await fleet("task", "show", added, "-o", "json")).json["result"] == 3
    lines = [json.loads(line) for line in err.splitlines()]
    messages = [line["message"] for line in lines]
    assert messages[0] == "lease granted"
    assert {"tasks claimed", "task started", "task succeeded", "task failed", "draining"} <= set(messages)
    (failed,) = [line for line in lines if line["message"] == "task failed"]
    assert (failed["level"], failed["task_id"], failed["error"]) == ("warning", refused, "ValueError")
    assert b"4111" not in err
