"""How tasks come to be: one by one, in the caller's transaction, once for a key, and in bulk."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from uuid_utils.compat import uuid7

from fleet.errors import ConfigurationError, IdempotencyConflict
from fleet.postgres.database import AsyncConnection, Database, run
from fleet.postgres.submit import CHUNK, Submission, accepted, copy, statement
from fleet.postgres.transaction import run_in, run_in_sync
from tests.postgres.steps import MINUTE, scalar, waits
from tests.support import execute, row, submit

HOUR = timedelta(hours=1)
MOMENT = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


def submission(**changes: Any) -> Submission:
    values: dict[str, Any] = {"id": uuid7(), "queue": "default", "name": "work", "args": "{}"}
    return Submission(**(values | changes))


async def send(connection: AsyncConnection, one: Submission) -> tuple[UUID, bool]:
    query, values = statement(one)
    return accepted(one, (await run(connection, query, **values))[0])


async def copy_all(connection: AsyncConnection, like: Submission, count: int = 1) -> None:
    rows = [(like.id, like.args)] + [(uuid7(), like.args) for _ in range(count - 1)]
    await copy(connection, like, rows, lambda _: None)


async def count(connection: AsyncConnection) -> tuple[int, int]:
    """Numbers of tasks and of submissions."""
    counted = await execute(
        connection, "SELECT (SELECT count(*) FROM fleet.task), (SELECT count(*) FROM fleet.submission)"
    )
    return counted[0][0], counted[0][1]


EVERYTHING: dict[str, Any] = {
    "queue": "q'; DROP TABLE fleet.task; --", "name": "näme %s :id", "args": '{"a": [1, null, "\\u00e4"]}', "priority": 0,
    "idempotent": False, "max_attempts": 7, "max_losses": 2, "timeout": timedelta(seconds=1.5), "run_at": MOMENT,
    "expires_at": MOMENT + HOUR,
}  # fmt: skip
WRITTEN = EVERYTHING | {
    "args": {"a": [1, None, "ä"]},
    "state": "QUEUED",
    "attempt": 0,
    "repeatable": False,
    "lease_id": None,
}


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_task_is_written_as_it_was_said(connection: AsyncConnection, key: str | None) -> None:
    one = submission(**EVERYTHING, key=key)
    assert await send(connection, one) == (one.id, True)
    after = await row(connection, one.id)
    assert {name: after[name] for name in WRITTEN} == WRITTEN


async def test_a_task_copied_is_the_same_as_a_task_submitted(connection: AsyncConnection) -> None:
    one = submission(**EVERYTHING)
    await copy_all(connection, one)
    after = await row(connection, one.id)
    assert {name: after[name] for name in WRITTEN} == WRITTEN


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("bulk", [False, True])
async def test_a_delay_goes_before_a_moment_and_neither_means_now(
    connection: AsyncConnection, key: str | None, bulk: bool
) -> None:
    begin = await scalar(connection, "SELECT clock_timestamp()")
    whens: list[dict[str, Any]] = [{"delay": HOUR, "run_at": MOMENT}, {"run_at": MOMENT}, {}]
    both, moment, neither = (submission(key=key and f"{key}{number}", **when) for number, when in enumerate(whens))
    for one in (both, moment, neither):
        await (copy_all(connection, one) if bulk else send(connection, one))
    end = await scalar(connection, "SELECT clock_timestamp()")

    assert begin + HOUR <= (await row(connection, both.id))["run_at"] <= end + HOUR
    assert (await row(connection, moment.id))["run_at"] == MOMENT
    assert begin <= (await row(connection, neither.id))["run_at"] <= end


@pytest.mark.parametrize("changes", [
    {"priority": 10}, {"priority": -1}, {"max_attempts": 0}, {"max_losses": 0}, {"args": r'{"a": "\u0000"}'}, {"args": "{"},
], ids=str)  # fmt: skip
async def test_what_cannot_hold_is_refused_and_nothing_is_written(
    connection: AsyncConnection, changes: dict[str, Any]
) -> None:
    for key in (None, "key"):
        with pytest.raises((psycopg.DataError, psycopg.IntegrityError, json.JSONDecodeError)):
            await submit(connection, key=key, **changes)
    with pytest.raises((psycopg.DataError, psycopg.IntegrityError)):
        await copy_all(connection, submission(**changes), 3)
    assert await count(connection) == (0, 0)


async def test_the_same_request_with_the_same_key_makes_one_task(connection: AsyncConnection) -> None:
    first = submission(key="key", args='{"a": 1, "b": 2}', timeout=MINUTE)
    again = submission(key="key", args='{"b":2,"a":1}', delay=HOUR, expires_at=MOMENT)

    assert await send(connection, first) == (first.id, True)
    assert await send(connection, again) == (first.id, False)
    assert await count(connection) == (1, 1)
    assert (await row(connection, first.id))["expires_at"] is None


@pytest.mark.fault("Submit", "the same key with another payload")
@pytest.mark.parametrize("changes", [
    {"queue": "b"}, {"name": "b"}, {"args": '{"a": 2}'}, {"priority": 4}, {"idempotent": False}, {"max_attempts": 2},
    {"max_losses": 1},
], ids=str)  # fmt: skip
async def test_another_request_with_the_same_key_is_a_conflict_that_names_the_first(
    connection: AsyncConnection, changes: dict[str, Any]
) -> None:
    first = submission(key="key")
    await send(connection, first)

    with pytest.raises(IdempotencyConflict, match=str(first.id)) as raised:
        await send(connection, submission(key="key", **changes))

    assert (raised.value.key, raised.value.task_id) == ("key", first.id)
    assert await count(connection) == (1, 1)


async def test_a_key_holds_in_its_scope_only(connection: AsyncConnection) -> None:
    for scope in ("a", "b"):
        assert (await send(connection, submission(key="key", scope=scope)))[1]
    assert await count(connection) == (2, 2)


@pytest.mark.fault("Submit", "50 identical submits at once")
async def test_fifty_at_once_with_one_key_make_one_task(connection: AsyncConnection, database: Database) -> None:
    connections = await asyncio.gather(*(database.connect("submitter") for _ in range(50)))
    try:
        answers = await asyncio.gather(*(send(each, submission(key="key")) for each in connections))
    finally:
        await asyncio.gather(*(each.close() for each in connections))

    assert len({task_id for task_id, _ in answers}) == 1
    assert Counter(created for _, created in answers) == {True: 1, False: 49}
    assert await count(connection) == (1, 1)


async def test_a_second_submitter_waits_for_the_first_and_takes_over_if_that_is_undone(
    connection: AsyncConnection, other: AsyncConnection
) -> None:
    for undo in (True, False):
        async with connection.transaction(force_rollback=undo):
            first, _ = await send(connection, submission(key="key"))
            running = asyncio.create_task(send(other, submission(key="key")))
            assert await waits(connection, running, other)
        second, created = await running
        assert (second != first, created) == (undo, undo)
        await connection.execute("TRUNCATE fleet.task, fleet.submission")


async def test_a_key_that_was_rolled_back_leaves_nothing(connection: AsyncConnection) -> None:
    async with connection.transaction(force_rollback=True):
        await send(connection, submission(key="key"))
    assert await count(connection) == (0, 0)
    assert (await send(connection, submission(key="key", args='{"a": 2}')))[1]


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("undo", [False, True])
async def test_a_task_exists_if_and_only_if_its_callers_transaction_commits(
    connection: AsyncConnection, database: Database, key: str | None, undo: bool
) -> None:
    one = submission(**EVERYTHING | {"delay": HOUR, "timeout": None}, key=key)
    query, values = statement(one)

    async def open_transaction() -> "psycopg.AsyncConnection[Any]":
        return await psycopg.AsyncConnection.connect(database.conninfo("tx"))

    engine = create_async_engine("postgresql+psycopg://", async_creator=open_transaction, poolclass=NullPool)

    async with AsyncSession(engine) as session:
        assert accepted(one, await run_in(session, query, values)) == (one.id, True)
        await (session.rollback() if undo else session.commit())
    assert await count(connection) == ((0, 0) if undo else (1, int(key is not None)))
    await connection.execute("TRUNCATE fleet.task, fleet.submission")

    async with engine.connect() as alchemy:
        accepted(one, await run_in(alchemy, query, values))
        await (alchemy.rollback() if undo else alchemy.commit())
    assert (await count(connection))[0] == int(not undo)
    await connection.execute("TRUNCATE fleet.task, fleet.submission")

    async with connection.transaction(force_rollback=undo):
        accepted(one, await run_in(connection, query, values))
    assert (await count(connection))[0] == int(not undo)


@pytest.mark.parametrize("undo", [False, True])
async def test_the_same_holds_for_synchronous_transactions(
    connection: AsyncConnection, database: Database, undo: bool
) -> None:
    engine = database.engine("tx")
    one, two, three = submission(), submission(key="key"), submission(timeout=MINUTE)
    with Session(engine) as session, engine.connect() as alchemy, database.connect_sync("tx") as plain:
        assert accepted(one, run_in_sync(session, *statement(one))) == (one.id, True)
        assert accepted(two, run_in_sync(alchemy, *statement(two))) == (two.id, True)
        with plain.transaction(force_rollback=undo):
            assert accepted(three, run_in_sync(plain, *statement(three))) == (three.id, True)
        for transaction in (session, alchemy):
            (transaction.rollback if undo else transaction.commit)()
    assert await count(connection) == ((0, 0) if undo else (3, 1))


async def test_a_transaction_of_the_wrong_kind_is_refused(connection: AsyncConnection, database: Database) -> None:
    with database.connect_sync("tx") as plain, pytest.raises(ConfigurationError, match="submit_sync"):
        await run_in(plain, *statement(submission()))
    with pytest.raises(ConfigurationError, match="await submit"):
        run_in_sync(connection, *statement(submission()))
    with pytest.raises(ConfigurationError, match="not str"):
        await run_in("connection", *statement(submission()))  # type: ignore[arg-type]


async def test_many_tasks_go_in_at_once_and_their_keys_are_not_looked_at(connection: AsyncConnection) -> None:
    heard: list[int] = []
    await copy(connection, submission(key="same"), ((uuid7(), "{}") for _ in range(12_000)), heard.append)
    assert await count(connection) == (12_000, 0)
    assert heard == list(range(CHUNK, 12_000 + CHUNK, CHUNK))


async def test_a_copy_that_breaks_off_leaves_nothing(connection: AsyncConnection) -> None:
    def broken() -> Iterator[tuple[UUID, str]]:
        yield from ((uuid7(), "{}") for _ in range(100))
        raise KeyError("the source is gone")

    with pytest.raises(KeyError, match="the source is gone"):
        await copy(connection, submission(), broken(), lambda _: None)
    assert await count(connection) == (0, 0)

    await copy(connection, submission(), [], lambda _: None)
    assert await count(connection) == (0, 0)


async def test_an_id_is_used_once(connection: AsyncConnection) -> None:
    one = submission()
    await send(connection, one)
    with pytest.raises(psycopg.errors.UniqueViolation):
        await send(connection, one)
