"""What follows when a handler raises."""

import asyncio
import threading
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from fleet import Context, Fail, Fleet, Retry, Settings
from fleet.errors import TaskFailed
from fleet.events import TaskSettled
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.support import counters, eventually, execute, history, row
from tests.worker.steps import Recorder


class Flaky(Exception):
    pass


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, backoff_base=timedelta(milliseconds=1), backoff_cap=timedelta(milliseconds=4))


async def test_a_repeatable_handler_that_raises_is_tried_again(app: Fleet, connection: AsyncConnection) -> None:
    @app.task(idempotent=True)
    async def work(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise Flaky("not yet")
        return ctx.attempt

    async with app.worker():
        ref = await work.submit()
        assert await ref.result(10) == 3
    stored = await row(connection, ref.id)
    assert (stored["attempt"], stored["failures"], stored["losses"]) == (3, 2, 0)
    assert stored["failure_reason"] is None
    assert await history(connection, ref.id) == [(1, False, "error"), (2, False, "error")]


async def test_between_two_tries_a_task_waits_in_the_queue(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    app.settings = replace(app.settings, backoff_base=timedelta(hours=1), backoff_cap=timedelta(hours=1))

    @app.task(idempotent=True)
    async def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Flaky
        return ctx.attempt

    ref = await work.submit()
    async with app.worker(events=recorder.events):
        assert (await recorder.seen(TaskSettled)).state is State.QUEUED
        assert 0.79 * 3600 < await seconds_until_due(connection, ref.id) <= 1.2 * 3600
        await execute(connection, "UPDATE fleet.task SET run_at = clock_timestamp() WHERE id = :id", id=ref.id)
        assert await ref.result(10) == 2


async def test_a_repeatable_handler_that_always_raises_fails_when_its_budget_is_spent(
    app: Fleet, connection: AsyncConnection
) -> None:
    ran = []

    @app.task(idempotent=True, max_attempts=3)
    async def work(ctx: Context) -> None:
        ran.append(ctx.attempt)
        raise Flaky(f"attempt {ctx.attempt}")

    async with app.worker():
        ref = await work.submit()
        with pytest.raises(TaskFailed) as failure:
            await ref.result(10)
    assert ran == [1, 2, 3]
    assert failure.value.code == "handler_error"
    assert failure.value.reason.splitlines()[0].endswith("Flaky: attempt 3")
    assert (await counters(connection))["dead_letters", "default", "handler_error"] == 1


async def test_a_handler_that_is_not_repeatable_fails_at_once(app: Fleet, connection: AsyncConnection) -> None:
    ran = []

    @app.task(max_attempts=5)
    async def charge() -> None:
        ran.append(1)
        raise Flaky("declined")

    async with app.worker():
        ref = await charge.submit()
        with pytest.raises(TaskFailed, match="declined"):
            await ref.result(10)
    assert ran == [1]


async def test_one_submission_may_take_the_repeat_back(app: Fleet) -> None:
    ran = []

    @app.task(idempotent=True)
    async def work() -> None:
        ran.append(1)
        raise Flaky

    async with app.worker():
        with pytest.raises(TaskFailed):
            await (await work.options(idempotent=False).submit()).result(10)
    assert ran == [1]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_retry_is_tried_again_whatever_was_declared(app: Fleet, *, idempotent: bool) -> None:
    @app.task(idempotent=idempotent, max_attempts=2)
    async def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Retry("the other side is busy", after=0)
        return ctx.attempt

    async with app.worker():
        assert await (await work.submit()).result(10) == 2


async def test_retry_says_when(app: Fleet, recorder: Recorder, connection: AsyncConnection) -> None:
    @app.task(idempotent=True)
    async def work() -> None:
        raise Retry(after=timedelta(hours=5))

    async with app.worker(events=recorder.events):
        ref = await work.submit()
        assert (await recorder.seen(TaskSettled)).state is State.QUEUED
    assert 0 <= 5 * 3600 - await seconds_until_due(connection, ref.id) < 60


async def seconds_until_due(connection: AsyncConnection, task_id: UUID) -> float:
    (due,) = await execute(
        connection,
        "SELECT extract(epoch FROM run_at - clock_timestamp())::float8 FROM fleet.task WHERE id = :id",
        id=task_id,
    )
    return float(due[0])


async def test_retry_counts_as_an_attempt(app: Fleet) -> None:
    ran = []

    @app.task(max_attempts=2)
    async def work() -> None:
        ran.append(1)
        raise Retry("never ready", after=0)

    async with app.worker():
        with pytest.raises(TaskFailed, match="never ready"):
            await (await work.submit()).result(10)
    assert ran == [1, 1]


async def test_a_retry_later_than_any_calendar_waits_a_hundred_years_and_holds_nobody_up(
    app: Fleet, connection: AsyncConnection
) -> None:
    @app.task(idempotent=True)
    async def work() -> None:
        raise Retry(after=timedelta.max)

    @app.task
    async def other() -> str:
        return "done"

    async with app.worker():
        ref = await work.submit()
        assert await (await other.submit()).result(10) == "done"
        later = "SELECT id FROM fleet.task WHERE id = :id AND state = 'QUEUED' AND run_at > now() + interval '99 years'"
        await eventually(lambda: execute(connection, later, id=ref.id))


async def test_fail_ends_a_task_whatever_its_budget(app: Fleet) -> None:
    ran = []

    @app.task(idempotent=True)
    async def work() -> None:
        ran.append(1)
        raise Fail("the file is gone")

    async with app.worker():
        with pytest.raises(TaskFailed, match="the file is gone"):
            await (await work.submit()).result(10)
    assert ran == [1]


async def test_retry_on_and_fail_on_name_what_is_tried_again(app: Fleet) -> None:
    ran: list[str] = []

    @app.task(idempotent=True, max_attempts=2, retry_on=(OSError,), fail_on=(FileNotFoundError,))
    async def work(kind: str) -> None:
        ran.append(kind)
        raise {"io": OSError, "file": FileNotFoundError, "value": ValueError}[kind]

    async with app.worker():
        for kind in ("io", "file", "value"):
            with pytest.raises(TaskFailed):
                await (await work.submit(kind)).result(10)
    assert ran == ["io", "io", "file", "value"]


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(), asyncio.CancelledError()], ids=repr
)
async def test_whatever_a_handler_raises_harms_only_its_own_task(
    app: Fleet, error: BaseException, *, plain: bool
) -> None:
    async def work() -> None:
        raise error

    def work_plain() -> None:
        raise error

    task = app.task(work_plain if plain else work)

    @app.task
    async def other() -> str:
        return "done"

    async with app.worker() as worker:
        ref = await task.submit()
        with pytest.raises(TaskFailed) as failure:
            await ref.result(5)
        assert failure.value.code == "handler_error"
        assert type(error).__name__ in failure.value.reason
        for _ in range(2 * app.settings.slots):
            assert await (await other.submit()).result(5) == "done"
        assert not worker.stuck


@pytest.mark.parametrize("waits", [True, False])
async def test_a_handler_that_cancels_its_own_task_harms_only_itself(app: Fleet, *, waits: bool) -> None:
    @app.task
    async def work() -> str:
        runner = asyncio.current_task()
        assert runner is not None
        runner.cancel()
        if waits:
            await asyncio.sleep(0)
        return "returned"

    @app.task
    async def other() -> str:
        return "done"

    async with app.worker():
        ref = await work.submit()
        if waits:
            with pytest.raises(TaskFailed, match="CancelledError"):
                await ref.result(5)
        else:
            assert await ref.result(5) == "returned"
        for _ in range(2 * app.settings.slots):
            assert await (await other.submit()).result(5) == "done"


@pytest.mark.fault("Payloads", "an error whose text has 100 MB")
@pytest.mark.fault("Payloads", "U+0000 in the text of an error")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("ends in \x00 and \x1b[31m and \ud800"), r"ends in \x00 and \x1b[31m and \xd800"),
        (Silent(), "Silent"),
        (Unpicklable(), "holds a lock"),
        (ExceptionGroup("several", [ValueError("one"), OSError("two")]), "several"),
        (ValueError("é" * 100_000_000), "[...]"),
    ],
    ids=["control", "silent", "unpicklable", "group", "100 MB"],
)
async def test_any_error_is_kept_as_clean_text_within_the_limit(
    app: Fleet, connection: AsyncConnection, error: Exception, said: str
) -> None:
    @app.task
    async def work() -> None:
        raise error

    async with app.worker():
        ref = await work.submit()
        with pytest.raises(TaskFailed) as failure:
            await ref.result(20)
    reason = failure.value.reason
    assert said in reason
    assert len(reason.encode()) <= app.settings.error_bytes_max
    assert "\x1b" not in reason


@pytest.mark.parametrize("plain", [True, False])
async def test_the_traceback_begins_with_the_handlers_own_frames(app: Fleet, *, plain: bool) -> None:
    def deeper() -> None:
        raise Flaky("here")

    async def work() -> None:
        deeper()

    def work_plain() -> None:
        deeper()

    task = app.task(work_plain if plain else work)
    async with app.worker():
        with pytest.raises(TaskFailed) as failure:
            await (await task.submit()).result(10)
    frames = [line.strip() for line in failure.value.reason.splitlines() if line.strip().startswith("File ")]
    assert [frame.rsplit("in ", 1)[1] for frame in frames] == ["work_plain" if plain else "work", "deeper"]
