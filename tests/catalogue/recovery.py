"""How long recovery took where tests measured it, from the lines that they append: {"fault", "seconds", "ttl"}."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

FILE = Path(__file__).with_name("recovery.jsonl")
PERIODS = 2.4  # of the reaper, which looks every ttl / 6, jittered


class Recovery(NamedTuple):
    """All measurements of one fault at one TTL; seconds. `bound` is None where no number was promised."""

    fault: str
    ttl: float
    measured: int  # how often
    median: float
    largest: float
    bound: float | None


def bound(fault: str, ttl: float) -> float | None:
    """What was promised: at once where a parent saw the death, twice the TTL after an outage, else the TTL and a little."""
    if "supervisor" in fault:
        return None
    leases = 2 if "database" in fault or "crash and a restart" in fault else 1
    return leases * ttl + PERIODS * ttl / 6


def recoveries(path: Path = FILE) -> Iterator[Recovery]:
    """Yield one summary for each fault and TTL, in the order of their names."""
    measured: dict[tuple[str, float], list[float]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        found = json.loads(line)
        measured[found["fault"], float(found["ttl"])].append(float(found["seconds"]))
    for (fault, ttl), seconds in sorted(measured.items()):
        yield Recovery(fault, ttl, len(seconds), median(seconds), max(seconds), bound(fault, ttl))
