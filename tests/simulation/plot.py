"""What chance may draw: who is there, what they do, in which order, and what goes wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.simulation.cast import (
    OUTCOMES,
    Script,
    canceller,
    claimer,
    drainer,
    expirer,
    judge,
    pruner,
    reaper,
    renewer,
    settler,
    submitter,
)
from tests.simulation.conductor import Bounds, Option
from tests.simulation.scenes import HOUR
from tests.simulation.world import World

Turn = tuple[int, int, int]  # who, for how many steps, and how the last of them is taken
CORE = ["holder settles", "reaper", "rival claims", "holder claims"]
OTHERS = [
    "canceller",
    "holder renews",
    "other reaper",
    "holder drains",
    "operator",
    "expirer",
    "client",
    "other client",
    "pruner",
]


@dataclass(frozen=True, slots=True)
class Plot:
    """What chance has drawn: what there is, who is there, what they do, and whose turn it is for how long."""

    tasks: list[bool]  # repeatable or not
    held: int  # how many of them the holder has at the beginning
    outcomes: list[str]
    parts: list[str]
    faults: int  # at most
    turns: list[Turn]

    async def scene(self, world: World) -> Mapping[str, Script]:
        drains = "holder drains" in self.parts
        await world.lease("holder")
        for number, repeatable in enumerate(self.tasks):
            await world.submit(
                repeatable=repeatable, expires_at=datetime.now(UTC) + HOUR, max_losses=1 + len(self.tasks[number:])
            )
            if number + 1 == min(self.held, len(self.tasks)):
                held = await world.hold("holder")
                world.start([] if drains else held)
        world.held.setdefault("holder", [])
        await world.lease("rival")
        script = {
            "holder settles": settler(world, "holder", *self.outcomes),
            "holder claims": claimer(world, "holder", *self.outcomes),
            "holder drains": drainer(world, "holder", claims="holder claims" in self.parts),
            "holder renews": renewer(world, "holder"),
            "rival claims": claimer(world, "rival", *self.outcomes),
            "reaper": reaper(world, "holder"),
            "other reaper": reaper(world, "rival" if "rival claims" in self.parts else "holder"),
            "canceller": canceller(world, *world.tasks),
            "operator": judge(world, "requeue", *world.tasks),
            "expirer": expirer(world, *world.tasks),
            "client": submitter(world, "key"),
            "other client": submitter(world, "key", '{"n": 1}'),
            "pruner": pruner(world),
        }
        # what drains has begun nothing and claims by itself: it is all that the holder does
        silent = {"holder settles", "holder claims"} if drains else set()
        return {part: script[part] for part in self.parts if part not in silent}

    def choose(self) -> "Chooser":
        return Chooser(list(reversed(self.turns)))

    @property
    def bounds(self) -> Bounds:
        return Bounds(switches=1000, faults=self.faults)


class Chooser:
    """Lets one actor after the other take some steps, the last of them with a twist; at the end, whatever is plainest."""

    def __init__(self, left: list[Turn]) -> None:
        self._left = left
        self._name = ""
        self._steps = 0
        self._twist = 0

    def __call__(self, options: Sequence[Option]) -> Option:
        theirs = [option for option in options if option.actor.name == self._name]
        while self._left and (not self._steps or not theirs):
            who, self._steps, self._twist = self._left.pop()
            names = sorted({option.actor.name for option in options})
            self._name = names[who % len(names)]
            theirs = [option for option in options if option.actor.name == self._name]
        if not self._steps or not theirs:
            return options[0]
        self._steps -= 1
        return theirs[0 if self._steps else self._twist % len(theirs)]


def plots(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Plot]:
    """Draw two or more of the core, and perhaps some others; or what is given, in place of what chance would draw."""
    drawn = {
        "tasks": st.lists(st.booleans(), min_size=1, max_size=4),
        "held": st.integers(0, 4),
        "outcomes": st.lists(st.sampled_from(sorted(OUTCOMES)), min_size=1, max_size=3),
        "parts": st.builds(
            list.__add__,
            st.lists(st.sampled_from(CORE), min_size=2, max_size=3, unique=True),
            st.lists(st.sampled_from(OTHERS), max_size=2, unique=True),
        ),
        "faults": st.integers(0, 2),
        "turns": st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 2, 2, 3, 5]), st.just(0) | st.integers(1, 4)),
            min_size=5,
            max_size=15,
        ),
    }
    return st.builds(Plot, **(drawn | fixed))


def quiet(examples: int) -> settings:
    """Always the same examples; as many as asked for."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
