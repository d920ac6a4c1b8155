"""Every schedule of a scene within bounds, one after the other: the last choice that can be another is taken back."""

import os
from collections import Counter
from collections.abc import Sequence

from tests.simulation.actor import How
from tests.simulation.conductor import Bounds, Option
from tests.simulation.play import Scene, play
from tests.simulation.theatre import Theatre

# How many schedules each test plays at most; None: few, always the same, as fits a quick run.
EXAMPLES = int(os.environ["FLEET_SIMULATION_EXAMPLES"]) if "FLEET_SIMULATION_EXAMPLES" in os.environ else None


class Prompted:
    """Takes these steps, each by the name of its actor and how, and between them whatever is the plainest."""

    def __init__(self, *steps: tuple[str, How]) -> None:
        self.left = list(steps)

    def choose(self, options: Sequence[Option]) -> Option:
        for option in options if self.left else []:
            if (option.actor.name, option.how) == self.left[0]:
                del self.left[0]
                return option
        return options[0]


class Path:
    """Takes the given choices, then always the plainest; remembers how many there were each time."""

    def __init__(self, given: Sequence[int]) -> None:
        self.taken = list(given)
        self.widths: list[int] = []

    def choose(self, options: Sequence[Option]) -> Option:
        place = len(self.widths)
        self.widths.append(len(options))
        if place == len(self.taken):
            self.taken.append(0)
        return options[self.taken[place]]

    def next(self) -> "Path | None":
        """The next path in order; None when this was the last."""
        for place in reversed(range(len(self.widths))):
            if self.taken[place] + 1 < self.widths[place]:
                return Path([*self.taken[:place], self.taken[place] + 1])
        return None


async def explore(theatre: Theatre, scene: Scene, bounds: Bounds, limit: int | None = None) -> Counter[How]:
    """Play every schedule within the bounds, or so many of them; return how all their steps were taken."""
    path: Path | None = Path([])
    count, taken = 0, Counter[How]()
    while path is not None and (limit is None or count < limit):
        taken += await play(theatre, scene, path.choose, bounds)
        count += 1
        path = path.next()
    return taken
