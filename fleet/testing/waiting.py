"""Waiting for conditions with a deadline, from plain code."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.01


def until(probe: Callable[[], T | None], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """Ask until the answer is true, and return it. Raises TimeoutError saying `what` did not come."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s; the last answer was {answer!r}")
        time.sleep(_POLL_SECONDS)
