"""How much work a demo makes, and how long a task takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from fleet.demo.tasks import SPREAD
from fleet.demo.texts import Text, at_least

_TEXTS_PER_WORKER_MIN = 8
_WORK_SECONDS = 5.0
_PACE_SECONDS = (0.15, 0.5)  # a shorter task cannot be caught surely, longer ones are tedious to watch
_BATCHES = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """Two tasks are made of each text."""

    texts: Sequence[Text]
    workers: int = 3
    ttl: timedelta = timedelta(seconds=3)
    slots: int = 4

    @classmethod
    def of(cls, texts: list[Text], workers: int) -> "Plan":
        """Plan for these texts; a few are used several times, so that there is work while the dead worker's waits."""
        return cls(at_least(_TEXTS_PER_WORKER_MIN * workers, texts), workers)

    @property
    def tasks(self) -> int:
        return 2 * len(self.texts)

    @property
    def pace(self) -> timedelta:
        """How long a task takes: all of them some five seconds, within bounds."""
        least, most = _PACE_SECONDS
        return timedelta(seconds=min(most, max(least, _WORK_SECONDS * self.workers * self.slots / self.tasks)))

    @property
    def fresh(self) -> timedelta:
        """A task that was claimed less than this ago is certainly running: the shortest takes longer."""
        return self.pace * (1 - SPREAD) * 0.7

    @property
    def batch(self) -> int:
        """How many texts are submitted at once: few, so that the two kinds of task take turns in the queue."""
        return max(self.slots // 2, len(self.texts) // _BATCHES)
