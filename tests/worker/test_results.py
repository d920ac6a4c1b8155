"""What a handler returns, and what becomes of a result that cannot be stored."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from fleet import Fleet
from fleet.errors import TaskFailed
from fleet.events import TaskSettled
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from fleet.worker import slots
from tests.support import counters, history
from tests.worker.steps import Gate, Recorder


class Point(pydantic.BaseModel):
    x: int
    y: int


@dataclass
class Size:
    width: int


class Angry(pydantic.BaseModel):
    @pydantic.model_serializer
    def serialize(self) -> dict[str, Any]:
        raise ValueError("no \x00 \ud800 form")


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("returned", "stored"),
    [
        (None, None),
        ("grüße 🐘 \u2028 'quoted' \\ \n", "grüße 🐘 \u2028 'quoted' \\ \n"),
        ({"a": [1, 2.5, True, None]}, {"a": [1, 2.5, True, None]}),
        ((1, 2), [1, 2]),
        (Point(x=1, y=2), {"x": 1, "y": 2}),
        ([Size(3)], [{"width": 3}]),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, {"at": "2026-01-02T00:00:00Z"}),
        ({1: "one"}, {"1": "one"}),
        (2**70, 2**70),
        ("\\u0000 as six characters", "\\u0000 as six characters"),
    ],
)
async def test_a_result_comes_back_as_json_gives_it(app: Fleet, returned: Any, stored: Any) -> None:
    @app.task
    async def work() -> Any:
        return returned

    async with app.worker():
        assert await (await work.submit()).result(10) == stored


@pytest.mark.fault("Payloads", "a result that cannot be serialised")
@pytest.mark.fault("Payloads", "U+0000 in a result")
@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ("a\x00b", r"\$: text with U\+0000"),
        ({"list": ["fine", {"deep\x00": 1}]}, r"\$\.list\[1\].*U\+0000"),
        ({"text": "\ud800"}, r"\$\.text: text with the lone surrogate U\+D800"),
        ([1.0, float("nan")], r"\$\[1\]: nan"),
        (float("inf"), "inf is no JSON number"),
        (object(), "object"),
        (b"\xff", "utf-8"),
        (10**5000, "4,000 digits"),
        (endless(), "levels deep"),
        (Angry(), "no"),
        ("x" * 2000, "2,002 bytes as JSON; the limit is 1,000"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
async def test_a_result_that_cannot_be_stored_is_rejected_and_the_handler_is_not_run_again(
    app: Fleet, connection: AsyncConnection, returned: Any, why: str
) -> None:
    app.settings = replace(app.settings, result_bytes_max=1000)
    ran = []

    @app.task(idempotent=True)
    async def work() -> Any:
        ran.append(1)
        return returned

    async with app.worker():
        ref = await work.submit()
        with pytest.raises(TaskFailed, match=why) as failure:
            await ref.result(10)
    assert failure.value.code == "result_rejected"
    assert "the handler finished" in failure.value.reason
    assert ran == [1]
    assert await history(connection, ref.id) == [(1, False, "error")]


@pytest.mark.fault("Payloads", "a result that cannot be serialised")
async def test_a_result_that_only_the_database_refuses_is_rejected_alone(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are settled in one batch, which the database refuses as a whole."""
    gate = Gate()
    monkeypatch.setattr(slots, "encode_result", lambda result, limit: '{"a":1e200000}' if result == 3 else str(result))

    @app.task
    async def work(number: int) -> int:
        await gate.enter(number)
        return number

    async with app.worker(events=recorder.events):
        refs = await app.submit_many(work, [{"number": number} for number in range(8)])
        await gate.waiting(8)
        gate.open()
        for number, ref in enumerate(refs):
            if number == 3:
                with pytest.raises(TaskFailed, match="the database refused its result") as failure:
                    await ref.result(10)
                assert failure.value.code == "result_rejected"
            else:
                assert await ref.result(10) == number
        await recorder.seen(TaskSettled, 8)
    assert sum(event.state is State.SUCCEEDED for event in recorder.of(TaskSettled)) == 7
    assert (await counters(connection))["dead_letters", "default", "result_rejected"] == 1


async def test_the_largest_result_arrives_intact(app: Fleet) -> None:
    limit = app.settings.result_bytes_max

    @app.task
    async def work() -> str:
        return "é" * ((limit - 2) // 2)

    async with app.worker():
        result = await (await work.submit()).result(10)
    assert len(json.dumps(result, ensure_ascii=False).encode()) == limit
