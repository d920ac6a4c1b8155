"""What a handler may raise to say what follows, and how long a task waits between two tries."""

from dataclasses import dataclass
from datetime import timedelta

AFTER_MAX = timedelta(days=36_500)


class Retry(Exception):
    """Raise it to have the task tried again, `after` so long (default: the back-off). Counts as an attempt."""

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason or "the handler asked for a retry")
        wait = timedelta(seconds=after) if isinstance(after, int | float) else after
        self.after = None if wait is None else min(max(wait, timedelta(0)), AFTER_MAX)


class Fail(Exception):
    """Raise it to have the task end FAILED at once, with this reason and whatever its budget."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """`base` · 2ⁿ up to `cap`, spread by `jitter` (0.2: between 80 % and 120 %)."""

    base: timedelta
    cap: timedelta
    jitter: float = 0.2

    def delay(self, failures: int, chance: float) -> timedelta:
        """The wait after this many earlier failures. `chance` lies in [0, 1]: 0.5 is no jitter."""
        seconds = min(self.base.total_seconds() * 2.0 ** min(failures, 60), self.cap.total_seconds())
        return timedelta(seconds=seconds * (1 + self.jitter * (2 * chance - 1)))
