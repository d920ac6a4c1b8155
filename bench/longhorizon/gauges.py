"""What is measured in this process."""

import itertools
import math
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from fleet.events import Event, TaskSettled
from fleet.task import State

WINDOW_SECONDS = 30
_STEP = math.log(1.002)  # latencies are told to a thousandth of their size
_LEAST_MS = 0.001


class Latencies:
    """Those of the last 30 s, counted by second and by size: however many they are, the memory is bounded."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[int]]] = deque(maxlen=WINDOW_SECONDS)

    def add(self, milliseconds: float) -> None:
        second = int(time.monotonic())
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][round(math.log(max(milliseconds, _LEAST_MS)) / _STEP)] += 1

    def percentiles(self, *shares: float) -> list[float]:
        """Return for each share the milliseconds that it did not exceed; an empty list where there were no latencies."""
        oldest = int(time.monotonic()) - WINDOW_SECONDS
        sizes: Counter[int] = Counter()
        for second, counted in self._seconds:
            if second > oldest:
                sizes.update(counted)
        ordered = sorted(sizes)
        so_far = list(itertools.accumulate(sizes[size] for size in ordered))
        return [
            math.exp(
                next(size for size, count in zip(ordered, so_far, strict=True) if count >= share * so_far[-1]) * _STEP
            )
            for share in (shares if so_far else ())
        ]


@dataclass(slots=True)
class Gauges:
    """What this process has done; and how many tasks wait: as last counted, and by what it has done since."""

    enqueued: int = 0
    started: int = 0
    completed: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    _others: int = 0  # what was counted, less what this process had enqueued, plus what it had started

    @property
    def depth(self) -> int:
        return max(0, self._others + self.enqueued - self.started)

    def counted(self, depth: int, *, enqueued: int, started: int) -> None:
        """So many waited when this process had enqueued and started so many."""
        self._others = depth - enqueued + started

    def notice(self, event: Event) -> None:
        """A task is completed when the database has taken its end."""
        if isinstance(event, TaskSettled) and event.state is State.SUCCEEDED:
            self.completed += 1
