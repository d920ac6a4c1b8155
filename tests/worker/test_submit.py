"""From submit to result: every way to say what is to be done."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pydantic
import pytest

from fleet import Context, Fleet
from fleet.errors import DatabaseUnreachable, IdempotencyConflict, InvalidArguments, TaskFailed
from fleet.postgres.database import AsyncConnection, Connection, Database
from fleet.postgres.submit import CHUNK
from fleet.task import State
from tests.support import eventually_sync, row
from tests.worker.steps import Gate, in_state


class Order(pydantic.BaseModel):
    id: int
    lines: list[str] = []


async def count(connection: AsyncConnection) -> int:
    cursor = await connection.execute("SELECT count(*) FROM fleet.task")
    (found,) = await cursor.fetchall()
    return int(found[0])


async def test_async_and_plain_functions_run_and_their_results_come_back(app: Fleet) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    def shout(text: str, *, times: int = 1) -> str:
        return text.upper() * times

    async with app.worker():
        assert await (await double.submit(21)).result(10) == 42
        assert await (await double.submit(number=4)).result(10) == 8
        assert await (await shout.submit("grüße 🐘", times=2)).result(10) == "GRÜSSE 🐘GRÜSSE 🐘"
    assert await double(3) == 6, "called, it is the function itself"


async def test_a_context_is_given_wherever_a_parameter_is_annotated_so(app: Fleet) -> None:
    @app.task
    async def first(ctx: Context, number: int) -> list[Any]:
        return [ctx.attempt, ctx.idempotency_key, ctx.fencing_token, ctx.name, ctx.queue, number]

    @app.task
    def last(number: int, ctx: Context) -> list[Any]:
        return [ctx.attempt, ctx.idempotency_key, ctx.fencing_token, ctx.name, ctx.queue, number]

    @app.task
    async def named(number: int, *, anything: Context) -> list[Any]:
        return [anything.attempt, str(anything.task_id), 1, anything.name, anything.queue, number]

    async with app.worker():
        for task, name in ((first, "first"), (last, "last"), (named, "named")):
            ref = await app.submit_many(task, [{"number": 5}])
            assert await ref[0].result(10) == [1, str(ref[0].id), 1, name, "default", 5]


async def test_arguments_arrive_as_the_types_that_the_handler_declares(app: Fleet) -> None:
    seen: list[Any] = []

    @app.task
    async def work(order: Order, at: datetime, key: UUID, half: float, maybe: str | None = None) -> None:
        seen.extend([order, at, key, half, maybe])

    at, key = datetime(2026, 1, 2, 3, tzinfo=UTC), UUID(int=7)
    async with app.worker():
        await (await work.submit(Order(id=1, lines=["a"]), at, key, half=0.5)).result(10)
    assert seen == [Order(id=1, lines=["a"]), at, key, 0.5, None]


@pytest.mark.parametrize("size", [8 * 1024, 9 * 1024, 900 * 1024])
async def test_large_arguments_arrive_intact(app: Fleet, size: int) -> None:
    text = 'é\\"\n🐘' * (size // 12)

    @app.task
    async def work(text: str) -> str:
        return text

    async with app.worker():
        assert await (await work.submit(text)).result(10) == text


async def test_plain_code_submits_too(app: Fleet) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    async with app.worker():
        ref = await asyncio.to_thread(work.submit_sync, 7)
        assert await ref.result(10) == 7


async def test_many_are_submitted_at_once_with_their_progress(app: Fleet) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    told: list[int] = []
    refs = await app.submit_many(work, ({"number": number} for number in range(12_000)), progress=told.append)
    assert len(refs) == len({ref.id for ref in refs}) == 12_000
    assert told == list(range(CHUNK, 12_000 + CHUNK, CHUNK))
    async with app.worker(queues=["default"]):
        assert await refs[0].result(10) == 0


async def test_many_may_take_longer_than_a_single_statement_may(app: Fleet, database: Database) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    limit = app.settings.statement_timeout

    def slowly(watcher: Connection) -> Iterator[dict[str, int]]:
        yield {"number": 1}
        overdue = (
            "SELECT FROM pg_stat_activity WHERE query LIKE '%%COPY fleet.task%%' AND state = 'active'"
            " AND datname = current_database() AND clock_timestamp() - query_start > 2 * %s::interval"
        )
        eventually_sync(lambda: watcher.execute(overdue, (limit,)).fetchone() is not None)
        yield {"number": 2}

    with database.connect_sync("watcher") as watcher:
        assert len(await app.submit_many(work, slowly(watcher))) == 2
    async with app.client.connection() as connection:
        shown = await (await connection.execute("SELECT current_setting('statement_timeout')::interval")).fetchone()
        assert shown is not None
        assert abs(shown[0] - limit) < timedelta(milliseconds=1), "the next one is bounded again"


async def test_of_many_none_is_submitted_when_one_is_refused(app: Fleet, connection: AsyncConnection) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    with pytest.raises(InvalidArguments, match="number") as refused:
        await app.submit_many(work, [{"number": 1}, {"number": "two"}, {"number": 3}])
    assert refused.value.__notes__ == ["in item 1; nothing was submitted"]
    with pytest.raises(InvalidArguments, match="idempotency key"):
        await app.submit_many(work.options(idempotency_key="k"), [{"number": 1}])
    assert await count(connection) == 0
    assert len(await app.submit_many(work, [])) == 0
    assert len(await app.submit_many(work, [{"number": 1}])) == 1, "the connection is as good as before"


async def test_many_may_submit_for_the_first_time_at_once(app: Fleet) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    refs = await asyncio.gather(*(work.submit(number) for number in range(50)))
    async with app.worker():
        assert await asyncio.gather(*(ref.result(10) for ref in refs)) == list(range(50))


async def test_who_finds_every_connection_in_use_waits_for_one_and_not_for_ever(app: Fleet) -> None:
    @app.task
    async def work() -> None: ...

    async with AsyncExitStack() as lent:
        for _ in range(8):
            await lent.enter_async_context(app.client.connection())
        with pytest.raises(DatabaseUnreachable, match=r"all 8 connections of this client .* were in use for 0\.66"):
            await work.submit()
        patient = asyncio.create_task(work.submit())
        await asyncio.sleep(0)
    assert await (await patient).state() is State.QUEUED
    await asyncio.gather(*(work.submit() for _ in range(20)))


async def test_the_same_key_is_the_same_task(app: Fleet, connection: AsyncConnection) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    first, again = [await work.options(idempotency_key="doc-7").submit(1) for _ in range(2)]
    assert first.id == again.id
    with pytest.raises(IdempotencyConflict, match="doc-7") as conflict:
        await work.options(idempotency_key="doc-7").submit(2)
    assert conflict.value.task_id == first.id
    assert (await work.options(idempotency_key="doc-8").submit(1)).id != first.id
    assert (await asyncio.to_thread(work.options(idempotency_key="doc-7").submit_sync, 1)).id == first.id
    assert await count(connection) == 2


async def test_the_same_key_from_many_at_once_makes_one_task(app: Fleet, connection: AsyncConnection) -> None:
    @app.task
    async def work() -> None: ...

    refs = await asyncio.gather(*(work.options(idempotency_key="one").submit() for _ in range(16)))
    assert len({ref.id for ref in refs}) == 1
    assert await count(connection) == 1


async def test_options_are_what_the_row_begins_with(app: Fleet, connection: AsyncConnection) -> None:
    @app.task(idempotent=True, priority=3)
    async def work() -> None: ...

    at = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    chosen = work.options(
        queue="slow", priority=0, run_at=at, expires_at=at + timedelta(days=1), timeout=1.5, idempotent=False,
        max_attempts=7, max_losses=2,
    )  # fmt: skip
    for ref in (await chosen.submit(), (await app.submit_many(chosen, [{}]))[0]):
        stored = await row(connection, ref.id)
        assert (stored["queue"], stored["priority"], stored["run_at"], stored["timeout"]) == (
            "slow", 0, at, timedelta(seconds=1.5),
        )  # fmt: skip
        assert stored["expires_at"] == at + timedelta(days=1)
        assert (stored["idempotent"], stored["max_attempts"], stored["max_losses"]) == (False, 7, 2)
    plain = await row(connection, (await work.submit()).id)
    assert (plain["priority"], plain["idempotent"], plain["max_attempts"], plain["max_losses"]) == (3, None, 5, 3)


@pytest.mark.parametrize(
    ("run_at", "stored_at"),
    [
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), datetime(1970, 1, 1, tzinfo=UTC)),
        (datetime(1969, 12, 31, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
        (datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))), datetime.max.replace(tzinfo=UTC)),
    ],
)
async def test_a_moment_that_no_driver_can_read_harms_nobody(
    app: Fleet, connection: AsyncConnection, run_at: datetime, stored_at: datetime
) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    odd = await work.options(run_at=run_at, expires_at=datetime.max.replace(tzinfo=UTC)).submit(1)
    await app.submit_many(work.options(run_at=run_at), [{"number": 2}])
    assert (await row(connection, odd.id))["run_at"] == stored_at
    async with app.worker():
        assert await (await work.submit(3)).result(10) == 3
        if stored_at.year == 1970:
            assert await odd.result(10) == 1


@pytest.mark.parametrize("moment", ["-infinity", "infinity", "0044-03-15 BC", "10000-01-01"])
async def test_a_moment_out_of_reach_cannot_be_written_by_hand_either(app: Fleet, moment: str) -> None:
    @app.task
    async def work() -> None: ...

    ref = await work.submit()
    async with app.client.connection() as connection:
        with pytest.raises(psycopg.errors.CheckViolation, match="task_run_at"):
            await connection.execute("UPDATE fleet.task SET run_at = %s WHERE id = %s", (moment, ref.id))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"color": "red"}, "unknown option"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at needs a time zone"),  # noqa: DTZ001 - that is the mistake
        ({"expires_at": datetime(2030, 1, 1)}, "expires_at needs a time zone"),  # noqa: DTZ001
        ({"idempotent": True}, "only be taken back"),
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"delay": -1}, "delay"),
        ({"timeout": 0}, "timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_losses": 0}, "max_losses"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "a\nb"}, "idempotency_key"),
        ({"idempotency_key": "x" * 256}, "idempotency_key"),
        ({"queue": ""}, "queue"),
        ({"queue": "a\x00b"}, "queue"),
        ({"queue": "x" * 201}, "queue"),
        ({"priority": "high"}, "priority"),
        ({"priority": 2.5}, "priority"),
        ({"delay": float("nan")}, "delay"),
        ({"timeout": float("inf")}, "timeout"),
        ({"delay": timedelta.max}, "delay"),
        ({"max_attempts": 2**31}, "max_attempts"),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_an_option_that_cannot_hold_is_refused_before_anything_is_written(
    app: Fleet, connection: AsyncConnection, options: dict[str, Any], why: str
) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(InvalidArguments, match=why):
        await work.options(**options).submit()
    assert await count(connection) == 0


async def test_a_task_that_nobody_starts_in_time_expires(app: Fleet) -> None:
    gate = Gate()

    @app.task
    async def work() -> None:
        await gate.enter()

    late = await work.options(expires_at=datetime.now(UTC)).submit()
    async with app.worker():
        with pytest.raises(TaskFailed, match="not started before") as failure:
            await late.result(10)
    assert failure.value.code == "expired"
    assert gate.entered == []


async def test_waiting_for_a_result_may_be_given_up_and_taken_up_again(app: Fleet) -> None:
    @app.task
    async def work() -> str:
        return "done"

    ref = await work.submit()
    with pytest.raises(TimeoutError, match="it goes on"):
        await ref.result(0.01)
    assert await ref.state() is State.QUEUED
    async with app.worker():
        assert await ref.result(timedelta(seconds=10)) == "done"
        await in_state(ref, State.SUCCEEDED)
