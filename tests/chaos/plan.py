"""What will be broken, and when: made from a seed and a length, and nothing else."""

import random
from dataclasses import dataclass
from typing import NamedTuple

TTL_SECONDS = 3.0
DRAIN_SECONDS = 4 * TTL_SECONDS + 20  # a drain that takes longer does not end


class Planned(NamedTuple):
    """One fault: at so many seconds from the beginning, for so many seconds. `dice` decides what is left open."""

    at: float
    fault: str
    seconds: float
    dice: float


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A fault comes about every so many seconds, and lasts between `shortest` and `longest` seconds."""

    every: float
    shortest: float = 0.0
    longest: float = 0.0


RHYTHMS: dict[str, Rhythm] = {
    # one worker
    "kill": Rhythm(12, 0.1, 4),  # and so long until it is replaced
    "pause past the TTL": Rhythm(45, 1.4 * TTL_SECONDS, 2.2 * TTL_SECONDS),
    "pause": Rhythm(25, 0.1, 0.6 * TTL_SECONDS),
    "drain": Rhythm(35, 0.1, 1),
    "exit in a handler": Rhythm(60),
    # its connections
    "partition": Rhythm(40, 0.5, 2 * TTL_SECONDS),
    "freeze to the server": Rhythm(60, 0.5, 1.5 * TTL_SECONDS),
    "freeze to the client": Rhythm(60, 0.5, 1.5 * TTL_SECONDS),
    "half-open": Rhythm(60, 0.5, 1.5 * TTL_SECONDS),
    "delay": Rhythm(45, 1, 4),
    "throttle": Rhythm(60, 1, 4),
    "reset": Rhythm(20),
    "refuse": Rhythm(50, 0.5, TTL_SECONDS),
    "swizzle": Rhythm(90, 2, 5),  # links stop one after the other, and come back in another order
    # one statement
    "cut before": Rhythm(12),
    "cut after": Rhythm(6),
    # the clients
    "cut a submission": Rhythm(8),
    "reset the clients": Rhythm(40),
    # the server
    "crash": Rhythm(65, 0.1, 2.5),
    "end all sessions": Rhythm(50),
    "lock a table": Rhythm(60, 0.5, 2),
    "hold rows": Rhythm(45, 0.5, 2),
}


def plan(seed: int, seconds: float) -> list[Planned]:
    """Return the faults in the order of their times. Every fault that fits into the time comes at least once."""
    planned = []
    for fault, rhythm in RHYTHMS.items():
        chance = random.Random(f"{seed} {fault}")
        at = rhythm.every * chance.uniform(0.3, 0.9)
        while at < seconds:
            lasting = chance.uniform(rhythm.shortest, rhythm.longest)
            planned.append(Planned(at, fault, lasting, chance.random()))
            at += rhythm.every * chance.uniform(0.6, 1.2)
    return sorted(planned)


@dataclass(frozen=True, slots=True)
class Quota:
    """What a run of ten minutes must have done at least; a shorter run in proportion, rounded down."""

    kills: int = 20
    long_pauses: int = 5
    restarts: int = 5
    cut_replies: int = 20

    def of(self, seconds: float) -> "Quota":
        share = min(1.0, seconds / 600)
        return Quota(*[int(share * each) for each in (self.kills, self.long_pauses, self.restarts, self.cut_replies)])
