"""The judges: one for each promise, each a pure function of a history."""

from collections.abc import Callable

from fleet.verify.judges import (
    accepted,
    arguments,
    budgets,
    cancels,
    claims,
    dead_claims,
    drains,
    edges,
    keys,
    names,
    reaping,
    settled_once,
    started_once,
    sums,
    together,
    unknowns,
    zombies,
)
from fleet.verify.reading import History
from fleet.verify.verdict import Ruling

Judge = Callable[[History], Ruling]

# Code → the promise in one line, and who judges it.
JUDGES: dict[str, tuple[str, Judge]] = {
    "S1": ("no accepted task is lost", accepted.judge),
    "S2": ("one settlement for an attempt, and an end is final", settled_once.judge),
    "S3": ("what must not be repeated is started once", started_once.judge),
    "S4": ("a late report changes nothing, is counted and kept", zombies.judge),
    "S5": ("no live lease is reaped", reaping.judge),
    "S6": ("no task spends more than its budget", budgets.judge),
    "S7": ("one key, one request, one task", keys.judge),
    "S8": ("claims are exclusive, attempts go 1, 2, 3", claims.judge),
    "S9": ("a dead lease claims nothing", dead_claims.judge),
    "S10": ("only the edges of the design", edges.judge),
    "S11": ("state, history and counters commit together", together.judge),
    "S15": ("cancel tells the truth", cancels.judge),
    "S16": ("accepted = rows + purged; counters agree", sums.judge),
    "S17": ("unknown is never called failed", unknowns.judge),
    "S18": ("a drain claims no more and costs nothing", drains.judge),
    "S19": ("handlers see what was accepted", arguments.judge),
    "S20": ("workers claim only what they can run", names.judge),
}
