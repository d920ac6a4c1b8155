"""Arguments that cannot be carried are refused, with the path to them, before anything is written."""

from dataclasses import replace
from typing import Any

import pydantic
import pytest

from fleet import Context, Fleet, Task
from fleet.errors import ConfigurationError, InvalidArguments, PayloadTooLarge
from fleet.postgres.database import AsyncConnection


class Point(pydantic.BaseModel):
    x: float


@pytest.fixture
def work(app: Fleet) -> "Task[..., None]":
    @app.task
    async def work(
        text: str, number: int = 0, extra: Any = None, half: float = 0.5, point: Point | None = None
    ) -> None: ...

    return work


async def nothing_was_written(connection: AsyncConnection) -> bool:
    cursor = await connection.execute("SELECT 1 FROM fleet.task")
    return await cursor.fetchall() == []


@pytest.mark.fault("Payloads", "U+0000 in arguments")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"text": "a\x00b"}, r"\$\.text: text with U\+0000"),
        ({"text": "\ud800"}, "surrogate|unicode"),
        ({"text": "", "extra": {"deep": [1, "\x00"]}}, r"\$\.extra\.deep\[1\]: text with U\+0000"),
        ({"text": "", "extra": {"\x00": 1}}, r"U\+0000"),
        ({"text": "", "half": float("nan")}, r"\$\.half: nan is no JSON number"),
        ({"text": "", "point": {"x": float("inf")}}, r"\$\.point\.x: inf is no JSON number"),
        ({"text": "", "extra": object()}, "object"),
        ({"text": "", "extra": "\ud800"}, "surrogate"),
        ({}, "text: Field required"),
        ({"text": "", "color": "red"}, "color: Extra inputs are not permitted"),
        ({"text": 5}, "text: Input should be a valid string"),
        ({"text": "", "number": "many"}, "number: Input should be a valid integer"),
        ({"text": 5, "number": "many"}, "text: .*; number: "),
    ],
    ids=lambda value: ascii(value)[:40],
)
async def test_what_cannot_be_carried_is_refused_with_its_path(
    work: "Task[..., None]", connection: AsyncConnection, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidArguments, match=why):
        await work.submit(**arguments)
    with pytest.raises(InvalidArguments, match=why):
        await work.app.submit_many(work, [arguments])
    assert await nothing_was_written(connection)


async def test_too_many_or_doubled_arguments_are_refused(work: "Task[..., None]", connection: AsyncConnection) -> None:
    with pytest.raises(InvalidArguments, match="takes 5 arguments, 6 were given"):
        await work.submit("a", 1, None, 0.5, None, 6)
    with pytest.raises(InvalidArguments, match="text given twice"):
        await work.submit("a", text="b")
    assert await nothing_was_written(connection)


@pytest.mark.fault("Payloads", "arguments of exactly the limit, and one byte more")
async def test_the_limit_is_exact_and_counts_bytes(app: Fleet, work: "Task[..., None]") -> None:
    app.settings = replace(app.settings, args_bytes_max=100)
    overhead = len('{"text":""}')
    await work.submit("é" * ((100 - overhead) // 2))
    with pytest.raises(PayloadTooLarge, match="the limit is 100") as refused:
        await work.submit("é" * ((100 - overhead) // 2 + 1))
    assert refused.value.size_bytes > refused.value.limit_bytes == 100


async def test_a_function_that_no_task_can_be_is_refused_when_it_is_declared(app: Fleet) -> None:
    async def positional(a: int, /) -> None: ...
    async def any_number(*a: int) -> None: ...
    async def any_keywords(**a: int) -> None: ...
    async def shapeless(connection: AsyncConnection) -> None: ...

    for function in (positional, any_number, any_keywords, shapeless):
        with pytest.raises(ConfigurationError, match=f"task '{function.__name__}'"):
            app.task(function)

    async def work(ctx: Context) -> None: ...

    app.task(work)
    with pytest.raises(ConfigurationError, match="there is a task 'work' already"):
        app.task(work)
    with pytest.raises(ConfigurationError, match="retry_on needs idempotent"):
        app.task(name="other", retry_on=(OSError,))(work)
