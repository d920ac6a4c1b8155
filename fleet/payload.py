"""JSON as PostgreSQL can hold it: what cannot be carried is refused with the path to the offending value."""

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

DEPTH_MAX = 150
_DIGITS_MAX = 3900
_LONG_NUMBER = re.compile(rf"\d{{{_DIGITS_MAX}}}")
_PLAIN = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


class Unrepresentable(ValueError):
    """A value that has no faithful form in JSON, and the path to it, such as `$.orders[3].note`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


def encode(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return `value` as compact JSON text.

    `default` turns an object that JSON does not know into one that it does; without it such an object is refused.
    Raises Unrepresentable for U+0000, lone surrogates, NaN, infinities, numbers and nestings beyond what the other
    side reads, and objects of unknown types. The quick way is the C encoder's; the walk is for the suspicious.
    """
    try:
        text = _PLAIN.encode(value) if default is None else _encoder(default).encode(value)
        if not text.isascii():
            text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        check(value, default)
        raise Unrepresentable("$", str(error)) from None
    if suspicious(text):
        check(value, default)
    return text


def suspicious(text: str) -> bool:
    """Tell whether JSON text may hold what PostgreSQL or Python will not read: only a walk through the value can say."""
    return (
        "\\u0000" in text
        or "NaN" in text
        or "Infinity" in text
        or (len(text) > 2 * DEPTH_MAX and text.count("[") + text.count("{") > DEPTH_MAX)
        or (len(text) >= _DIGITS_MAX and _LONG_NUMBER.search(text) is not None)
    )


def check(value: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Raise Unrepresentable for the first part of `value` that JSON in PostgreSQL cannot carry."""
    for path, why in faults(value, default):
        raise Unrepresentable(path, why) from None


@functools.cache
def _encoder(default: Callable[[Any], Any]) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=default)


def faults(  # noqa: C901, PLR0912 - one case for each kind of value
    value: Any, default: Callable[[Any], Any] | None = None, path: str = "$", depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield (path, why) for every part of `value` that JSON in PostgreSQL cannot carry."""
    if depth > DEPTH_MAX:
        yield path, f"nested more than {DEPTH_MAX} levels deep, or contains itself"
        return
    match value:
        case None | bool():
            pass
        case str():
            yield from _faults_of_text(value, path)
        case int():
            if value.bit_length() > 13_000:
                yield path, "an integer of more than about 4,000 digits"
        case float():
            if not math.isfinite(value):
                yield path, f"{value} is no JSON number"
        case dict():
            for key, member in value.items():
                if not isinstance(key, str | int | float | None):
                    yield path, f"the key {key!r} is no string"
                    continue
                yield from _faults_of_text(str(key), f"{path}.{key!a}")
                yield from faults(member, default, f"{path}.{key}", depth + 1)
        case list() | tuple():
            for index, member in enumerate(value):
                yield from faults(member, default, f"{path}[{index}]", depth + 1)
        case _:
            yield from _faults_of_object(value, default, path, depth)


def _faults_of_text(text: str, path: str) -> Iterator[tuple[str, str]]:
    if "\x00" in text:
        yield path, "text with U+0000, which PostgreSQL cannot store"
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        yield path, f"text with the lone surrogate U+{ord(text[error.start]):04X} at position {error.start}"


def _faults_of_object(
    value: Any, default: Callable[[Any], Any] | None, path: str, depth: int
) -> Iterator[tuple[str, str]]:
    if default is None:
        yield path, f"{type(value).__name__} has no JSON form"
        return
    try:
        plain = default(value)
    except (TypeError, ValueError) as error:
        yield path, str(error)
        return
    yield from faults(plain, default, path, depth + 1)


def byte_length(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def clean_text(text: str, limit_bytes: int) -> str:
    """Make text from anywhere fit to be stored and shown: control characters escaped, cut to the limit in the middle."""
    if len(text) > 4 * limit_bytes:
        text = text[: 2 * limit_bytes] + text[-2 * limit_bytes :]
    text = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
    data = text.encode(errors="backslashreplace")
    if len(data) <= limit_bytes:
        return data.decode()
    mark = b"\n[...]\n"
    head = max(0, (limit_bytes - len(mark)) // 2)
    tail = max(0, limit_bytes - len(mark) - head)
    kept = data[:head] + mark[:limit_bytes] + (data[-tail:] if tail else b"")
    return kept.decode(errors="ignore")
