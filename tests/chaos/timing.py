"""How long claims and renewals took in the first and in the last part of a run: a held snapshot must not tell them apart."""

from collections import defaultdict
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from fleet.verify.history import lines

SHARE = 5  # the first and the last fifth
TIMED = ("claimed", "renewed")


class Timing(NamedTuple):
    """Milliseconds of one kind of statement in one part of the run."""

    what: str
    part: str
    number: int
    p50: float
    p99: float


def timings(folder: Path) -> list[Timing]:
    """Read what the workers have written down. Parts with less than two statements are left out."""
    taken: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in lines(folder):
        if line["what"] in TIMED:
            taken[line["what"]].append((line["at"], 1000 * line["seconds"]))
    found = []
    for what, all_of_it in sorted(taken.items()):
        begin, end = min(at for at, _ in all_of_it), max(at for at, _ in all_of_it)
        share = (end - begin) / SHARE
        for part, first, last in (("first fifth", begin, begin + share), ("last fifth", end - share, end)):
            some = [each for at, each in all_of_it if first <= at <= last]
            if len(some) > 1:
                cuts = quantiles(some, n=100)
                found.append(Timing(what, part, len(some), cuts[49], cuts[98]))
    return found
