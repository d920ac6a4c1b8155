"""A registered function: its declaration, its arguments, and what follows from an exception."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fleet.context import Context
from fleet.errors import ConfigurationError, InvalidArguments, InvalidResult, PayloadTooLarge
from fleet.handler import Handler, describe, encode_result
from fleet.lease import Lease
from fleet.retry import BackOff, Fail, Retry
from fleet.task import ClaimedTask, FailureCode

SECOND = timedelta(seconds=1)
BACKOFF = BackOff(SECOND, 100 * SECOND, jitter=0)
LIMIT = 1000


def handler(function: Callable[..., Any], **changes: Any) -> Handler:
    values: dict[str, Any] = {"name": "work", "queue": "default", "idempotent": True, "max_attempts": 5}
    return Handler(function=function, **(values | changes))


def greet(name: str, times: int, day: date = date(2026, 1, 1), *, loud: bool = False) -> str:
    return f"{name}{times}{day}{loud}"


async def with_context(context: Context, name: str) -> str:
    return f"{context}{name}"


def untyped(a, b=None):  # type: ignore[no-untyped-def]  # noqa: ANN001
    return a, b


def test_the_signature_is_read() -> None:
    one = handler(greet)
    assert (one.parameters, one.context_name, one.is_async) == (("name", "times", "day", "loud"), None, False)


def test_the_context_is_no_argument_wherever_it_stands() -> None:
    one = handler(with_context)
    assert (one.parameters, one.context_name, one.is_async) == (("name",), "context", True)
    assert one.bind(("x",), {}) == {"name": "x"}
    with pytest.raises(InvalidArguments, match="context"):
        one.encode({"name": "x", "context": 1}, LIMIT)


def test_arguments_go_through_json_and_come_back_as_what_they_were() -> None:
    one = handler(greet)
    text = one.encode({"name": "Ann", "times": 2, "day": date(2026, 5, 6), "loud": True}, LIMIT)
    assert text == '{"name":"Ann","times":2,"day":"2026-05-06","loud":true}'
    assert one.decode(text) == {"name": "Ann", "times": 2, "day": date(2026, 5, 6), "loud": True}


def test_what_has_a_default_may_be_left_out_and_is_not_stored() -> None:
    one = handler(greet)
    assert one.encode({"name": "Ann", "times": 2}, LIMIT) == '{"name":"Ann","times":2}'
    assert one.decode('{"name":"Ann","times":2}') == {"name": "Ann", "times": 2}


def test_arguments_without_annotations_take_anything_that_json_can_say() -> None:
    one = handler(untyped)
    assert one.decode(one.encode({"a": {"x": [1, None]}}, LIMIT)) == {"a": {"x": [1, None]}}


def test_every_wrong_argument_is_listed() -> None:
    with pytest.raises(InvalidArguments) as raised:
        handler(greet).encode({"times": "many", "day": "soon", "shout": 1}, LIMIT)
    message = str(raised.value)
    assert message.startswith("work: ")
    assert [part.split(":")[0] for part in message.removeprefix("work: ").split("; ")] == [
        "name",
        "times",
        "day",
        "shout",
    ]


@pytest.mark.parametrize(
    "text", ['{"name":1}', '{"name":"a","times":"x"}', "[]", "{", '{"name":"a","times":1,"gone":1}']
)
def test_stored_arguments_that_fit_no_longer_are_refused(text: str) -> None:
    with pytest.raises(InvalidArguments, match=r"^work: "):
        handler(greet).decode(text)


def test_what_json_cannot_carry_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidArguments, match=r"\$\.a: text with U\+0000"):
        handler(untyped).encode({"a": "a\x00"}, LIMIT)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_cannot_carry_is_refused_and_not_replaced(number: float) -> None:
    with pytest.raises(InvalidArguments, match=r"\$\.a: (nan|inf) is no JSON number"):
        handler(untyped).encode({"a": number}, LIMIT)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_cannot_carry_is_refused_where_a_number_is_declared(number: float) -> None:
    def measure(x: float) -> float:
        return x

    with pytest.raises(InvalidArguments, match=r"\$\.x: (nan|inf) is no JSON number"):
        handler(measure).encode({"x": number}, LIMIT)


def test_arguments_are_limited_in_bytes_exactly() -> None:
    one = handler(untyped)
    size = len('{"a":"ä"}'.encode())
    assert one.encode({"a": "ä"}, size) == '{"a":"ä"}'
    with pytest.raises(PayloadTooLarge) as raised:
        one.encode({"a": "ä"}, size - 1)
    assert (raised.value.size_bytes, raised.value.limit_bytes) == (size, size - 1)


def test_a_call_is_bound_to_names() -> None:
    one = handler(greet)
    assert one.bind(("Ann", 2), {"loud": True}) == {"name": "Ann", "times": 2, "loud": True}
    with pytest.raises(InvalidArguments, match="takes 4 arguments, 5 were given"):
        one.bind((1, 2, 3, 4, 5), {})
    with pytest.raises(InvalidArguments, match="name, times given twice"):
        one.bind(("Ann", 2), {"times": 3, "name": "Bob"})


class Lock:
    """A type of which no JSON can be made."""


def positional_only(a: int, /) -> None: ...
def any_number(*numbers: int) -> None: ...
def any_keyword(**options: int) -> None: ...
def no_json(connection: Lock) -> None: ...
def unresolved(a: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(("function", "message"), [
    (positional_only, "parameter 'a' is positional-only"), (any_number, "parameter 'numbers' takes any number of arguments"),
    (any_keyword, "parameter 'options' takes any keywords"), (no_json, "an argument's type has no JSON form"),
    (unresolved, "an annotation cannot be resolved: .*NoSuchType"),
])  # fmt: skip
def test_a_signature_that_cannot_be_stored_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"task 'work': {message}"):
        handler(function)


@pytest.mark.parametrize(("changes", "message"), [
    ({"name": ""}, "a name has 1 to 200"), ({"name": "a" * 201}, "a name has"), ({"name": "a\n"}, "a name has"),
    ({"queue": ""}, "a queue's name has"), ({"queue": "a" * 201}, "a queue's name has"),
    ({"queue": "a\x00"}, "a queue's name has"),
    ({"priority": -1}, "priority is 0"), ({"priority": 10}, "priority is 0"), ({"max_attempts": 0}, "max_attempts >= 1"),
    ({"max_losses": 0}, "max_losses >= 1"), ({"timeout": timedelta(0)}, "timeout > 0"),
    ({"idempotent": False, "retry_on": (OSError,)}, "retry_on needs idempotent=True"),
], ids=str)  # fmt: skip
def test_a_declaration_that_cannot_hold_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        handler(greet, **changes)


def test_a_declaration_at_its_bounds_holds() -> None:
    handler(
        greet, name="a" * 200, queue="q" * 200, priority=9, max_attempts=1, max_losses=1, timeout=timedelta.resolution
    )
    handler(greet, priority=0, idempotent=True, retry_on=(OSError,))


NOTHING: tuple[type[Exception], ...] = ()
JUDGEMENTS: list[tuple[bool, tuple[type[Exception], ...], tuple[type[Exception], ...], Exception, timedelta | None]] = [
    # repeatable, retry_on, fail_on, error → delay (None: the end)
    (True, NOTHING, NOTHING, OSError("x"), 4 * SECOND),
    (False, NOTHING, NOTHING, OSError("x"), None),
    (True, NOTHING, NOTHING, Fail("x"), None),
    (False, NOTHING, NOTHING, Fail("x"), None),
    (True, NOTHING, NOTHING, Retry("x"), 4 * SECOND),
    (False, NOTHING, NOTHING, Retry("x"), 4 * SECOND),
    (True, NOTHING, NOTHING, Retry("x", after=7), 7 * SECOND),
    (False, NOTHING, NOTHING, Retry("x", after=timedelta(0)), timedelta(0)),
    (True, (OSError,), NOTHING, TimeoutError("x"), 4 * SECOND),
    (True, (OSError,), NOTHING, ValueError("x"), None),
    (False, (OSError,), NOTHING, OSError("x"), None),
    (True, (OSError,), NOTHING, Retry("x"), 4 * SECOND),
    (True, NOTHING, (OSError,), TimeoutError("x"), None),
    (True, NOTHING, (OSError,), ValueError("x"), 4 * SECOND),
    (True, (OSError,), (TimeoutError,), TimeoutError("x"), None),
    (True, (OSError,), (TimeoutError,), ConnectionError("x"), 4 * SECOND),
    (True, NOTHING, (Retry,), Retry("x"), 4 * SECOND),
]


@pytest.mark.parametrize(("repeatable", "retry_on", "fail_on", "error", "delay"), JUDGEMENTS)
def test_what_follows_from_an_exception(
    repeatable: bool,
    retry_on: tuple[type[Exception], ...],
    fail_on: tuple[type[Exception], ...],
    error: Exception,
    delay: timedelta | None,
) -> None:
    one = handler(greet, retry_on=retry_on, fail_on=fail_on)
    lease = Lease(UUID(int=1), "worker", SECOND)
    task = ClaimedTask(
        UUID(int=2), "work", "default", 5, datetime.now(UTC), 3, repeatable, 2, 0, None, "{}", None, lease
    )  # two failures so far: the third wait
    judged = one.judge(task, error, BACKOFF, LIMIT)
    assert (judged.code, judged.delay) == (FailureCode.HANDLER_ERROR, delay)
    assert judged.reason.splitlines()[0].endswith("x")


@dataclass
class Point:
    x: int
    day: date


@pytest.mark.parametrize(("result", "text"), [
    (None, "null"), (Point(1, date(2026, 1, 2)), '{"x":1,"day":"2026-01-02"}'), ({"a": (1, 2)}, '{"a":[1,2]}'), ("ä", '"ä"'),
    (SECOND, '"PT1S"'), (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
])  # fmt: skip
def test_a_result_becomes_json(result: object, text: str) -> None:
    assert encode_result(result, LIMIT) == text


@pytest.mark.parametrize("result", ["a\x00", float("inf"), Ellipsis, [b"\xff"], {(1, 2): 3}], ids=repr)
def test_a_result_that_has_no_form_is_refused(result: object) -> None:
    with pytest.raises(InvalidResult, match="the handler finished, but its result cannot be stored"):
        encode_result(result, LIMIT)


@pytest.mark.fault("Payloads", "a result of exactly the limit, and one byte more")
def test_a_result_is_limited_in_bytes_exactly() -> None:
    assert encode_result("ä" * 10, 22)
    with pytest.raises(InvalidResult, match="takes 22 bytes as JSON; the limit is 21"):
        encode_result("ä" * 10, 21)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    "error", [ValueError("a\x00\ud800"), Unspeakable(), ExceptionGroup("g", [OSError("y" * 5000)])]
)
def test_any_exception_can_be_described_and_stored(error: BaseException) -> None:
    text = describe(error, 500)
    assert type(error).__name__ in text
    assert 0 < len(text.encode()) <= 500
    assert "\x00" not in text


def noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


LINES = "é\n" * 10_000_000


@pytest.mark.parametrize(
    "error",
    [
        ValueError(LINES),
        noted(ValueError("a"), LINES),
        caused(ValueError("a"), OSError(LINES)),
        ExceptionGroup("several", [OSError(LINES)]),
    ],
    ids=["message", "note", "cause", "group"],
)
def test_millions_of_lines_are_cut_before_they_are_laid_out(error: BaseException) -> None:
    began = time.process_time()
    text = describe(error, 16384)
    assert (
        time.process_time() - began < 1.0
    )  # laid out they take 3 s and more, and the event loop stands still meanwhile
    assert "[...]" in text
    assert len(text.encode()) <= 16384


def test_a_description_has_the_message_first_and_then_the_traceback() -> None:
    try:
        greet("Ann", 1 // 0)
    except ZeroDivisionError as error:
        text = describe(error, 5000)
    assert text.startswith("ZeroDivisionError: integer division or modulo by zero\n\nTraceback")
    assert "1 // 0" in text
