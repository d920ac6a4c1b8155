"""What JSON can carry to PostgreSQL and back, and what is refused, with the path to it."""

import json
import math
from datetime import date
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.payload import DEPTH_MAX, Unrepresentable, clean_text, encode, faults

NUL, LONE = "\x00", "\ud800"


class Number(IntEnum):
    ONE = 1


def nested(depth: int, inside: Any = None) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


TEXTS = st.text(st.sampled_from(["a", "ä", '"', "\\", "\n", "\u2028", "\U0001f600", NUL, LONE]), max_size=5)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)


@given(VALUES)
@settings(max_examples=80, deadline=None)
def test_whatever_is_accepted_comes_back_equal_and_whatever_is_refused_has_a_fault(value: Any) -> None:
    found = list(faults(value))
    if found:
        with pytest.raises(Unrepresentable) as raised:
            encode(value)
        assert (raised.value.path, raised.value.why) in found
    else:
        assert json.loads(encode(value)) == value


@pytest.mark.parametrize(("value", "text"), [
    ({"a": [1, 2.5, None, True, "ä\n"]}, '{"a":[1,2.5,null,true,"ä\\n"]}'),
    ((1, 2), "[1,2]"),
    (Number.ONE, "1"),
    ({1: "a"}, '{"1":"a"}'),
    ("\\u0000", '"\\\\u0000"'),
    ("\U0001f600", '"\U0001f600"'),
    ("", '""'),
])  # fmt: skip
def test_the_text_is_compact_json(value: Any, text: str) -> None:
    assert encode(value) == text


@pytest.mark.parametrize(("value", "path", "why"), [
    (NUL, "$", "U+0000"),
    ({"a": ["", {"b": f"x{NUL}"}]}, "$.a[1].b", "U+0000"),
    ({f"a{NUL}": 1}, "$.'a\\x00'", "U+0000"),
    ([f"ab{LONE}"], "$[0]", "lone surrogate U+D800 at position 2"),
    ({LONE: 1}, "$.'\\ud800'", "lone surrogate"),
    ([1, math.nan], "$[1]", "nan is no JSON number"),
    ({"a": math.inf}, "$.a", "inf is no JSON number"),
    ({"a": -math.inf}, "$.a", "-inf is no JSON number"),
    ({"a": {"b": date(2026, 1, 1)}}, "$.a.b", "date has no JSON form"),
    ([{1, 2}], "$[0]", "set has no JSON form"),
    ([b"x"], "$[0]", "bytes has no JSON form"),
    ({(1, 2): 3}, "$", "the key (1, 2) is no string"),
    ([10**5000], "$[0]", "an integer of more than about 4,000 digits"),
    ([-(10**5000)], "$[0]", "an integer of more than about 4,000 digits"),
])  # fmt: skip
def test_what_cannot_be_carried_is_refused_with_the_path_to_it(value: Any, path: str, why: str) -> None:
    with pytest.raises(Unrepresentable) as raised:
        encode(value)
    assert raised.value.path == path
    assert why in raised.value.why


def test_an_integer_of_four_thousand_digits_is_nothing_special() -> None:
    number = 10**3900
    assert json.loads(encode([number])) == [number]


def test_every_fault_is_found() -> None:
    assert [path for path, _ in faults({"a": NUL, "b": [math.nan, LONE], "c": 1})] == ["$.a", "$.b[0]", "$.b[1]"]


def test_the_depth_is_limited_exactly() -> None:
    assert json.loads(encode(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(Unrepresentable, match="nested more than 150 levels deep"):
        encode(nested(DEPTH_MAX + 1))


def test_breadth_is_not_depth() -> None:
    wide = [[number] for number in range(1000)]
    assert json.loads(encode(wide)) == wide


def test_what_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = [loop]
    with pytest.raises(Unrepresentable, match="contains itself"):
        encode(loop)


def test_nesting_beyond_the_interpreters_own_limit_is_refused_too() -> None:
    with pytest.raises(Unrepresentable, match="nested more than 150 levels deep"):
        encode(nested(100_000))


def test_an_object_of_another_type_is_turned_into_one_that_json_knows() -> None:
    assert encode({"day": date(2026, 1, 2)}, default=str) == '{"day":"2026-01-02"}'


def test_what_an_object_is_turned_into_is_looked_at_as_well() -> None:
    with pytest.raises(Unrepresentable) as raised:
        encode({"a": [date(2026, 1, 2)]}, default=lambda value: {"text": f"{value}{NUL}"})
    assert (raised.value.path, raised.value.why) == ("$.a[0].text", "text with U+0000, which PostgreSQL cannot store")

    def refuse(value: object) -> object:
        raise TypeError(f"no {type(value).__name__} today")

    with pytest.raises(Unrepresentable, match=r"\$\.a: no date today"):
        encode({"a": date(2026, 1, 2)}, default=refuse)


@pytest.mark.parametrize(("text", "clean"), [
    ("plain\n\ttext ä \U0001f600", "plain\n\ttext ä \U0001f600"), (f"a{NUL}b", "a\\x00b"), ("a\x1b[31m\r", "a\\x1b[31m\\x0d"),
    (f"a{LONE}", "a\\xd800"), ("", ""),
])  # fmt: skip
def test_text_is_made_fit_to_be_stored_and_shown(text: str, clean: str) -> None:
    assert clean_text(text, 100) == clean


@given(st.lists(TEXTS, max_size=12).map("".join), st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_clean_text_can_always_be_stored_and_keeps_to_its_limit(text: str, limit: int) -> None:
    clean = clean_text(text, limit)
    assert len(clean.encode()) <= limit
    assert list(faults(clean)) == []
    assert clean_text(clean, limit) == clean


def test_long_text_is_cut_in_the_middle() -> None:
    assert clean_text("a" * 50, 50) == "a" * 50
    cut = clean_text("a" * 30 + "b" * 21, 50)
    assert len(cut) == 50
    assert cut.startswith("a" * 21)
    assert cut.endswith("b" * 21)
    assert "[...]" in cut
    assert len(clean_text("ä" * 10_000_000, 1000).encode()) <= 1000
