"""The page of faults, written from the marks of the tests and from what they last did."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.catalogue import long_runs
from tests.catalogue.collect import ROOT, Defence
from tests.catalogue.faults import FAULTS
from tests.catalogue.reasons import NOT_TESTED
from tests.catalogue.recovery import Recovery

PAGE = ROOT / "docs" / "faults.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
RESULTS = Path(__file__).with_name("results.json")

RECOVERY = """\
From the fault to the moment at which the task ran again or was settled, in seconds, as the tests measured it on a machine
that runs several of them at once. Promised after a worker's death: its TTL and 2.4 periods of the reaper, which looks every
TTL / 6.

"""

Results = Mapping[str, Mapping[str, Any]]

INTRODUCTION = """\
# Faults

<!-- Written by `python -m tests.catalogue`; a test compares. Edit tests/catalogue/ instead. -->

What is done to Fleet on purpose, what must hold afterwards, and which test sees to it. The promises themselves are in
[What is guaranteed](guarantees.md).

Nothing here is simulated by a stand-in. Workers are processes of their own, killed by SIGKILL and stopped by SIGSTOP. Their
database is a PostgreSQL that is crashed, filled up, locked and failed over. Between the two stands a proxy that understands
PostgreSQL's protocol: it delays, freezes one way, resets, and drops exactly the reply to one statement. Where an instant
matters, the code stops at a named point and waits for the test to say `go` or `die`. What handlers do to the world outside
is counted outside. Time is real: leases of two or three seconds, and no test sleeps instead of waiting for a condition.

A test that breaks something proves that it did (the process died of that signal, the statement was cut, the lease was
reaped), and judges by the rows, the history, the counters and the world outside. What it holds to be right stands in the
column *oracle*.

```text
make test              everything that takes no longer than a moment
make test-faults       all that takes longer, since it breaks real things
make test-conformance  the tests of the statements and of the worker on other servers and Pythons
make test-containers   what needs a container engine
make chaos             faults in random order for as long as you like, and a judgement of the whole history
```

*Last result* is what the test did when this page was last given results; one that stands for several cases counts them.
"""


def page(defences: Sequence[Defence], results: Results, recoveries: Sequence[Recovery]) -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    for group, faults in FAULTS.items():
        rows = [row(each, results) for fault in faults for each in against(defences, group, fault)]
        parts.append(section(group, table(("fault", "oracle", "test", "last result"), rows)))
    missing = [(group, fault, why) for (group, fault), why in NOT_TESTED.items()]
    parts.append(section("Not tested, and why", table(("group", "fault", "why"), missing)))
    parts.append(section("The long run", long_runs.WORDS + table(long_runs.COLUMNS, long_runs.rows())))
    parts.append(section("Recovery times", recovery_times(recoveries)))
    return "\n".join(parts)


def against(defences: Iterable[Defence], group: str, fault: str) -> list[Defence]:
    """Return the tests that stand for one fault, in the order of their names."""
    return sorted((each for each in defences if (each.group, each.fault) == (group, fault)), key=lambda each: each.test)


def row(defence: Defence, results: Results) -> tuple[str, str, str, str]:
    short = defence.test.removeprefix("tests/")
    return defence.fault, defence.oracle, f"[`{short}`](../{defence.path})", last_result(defence.cases, results)


def last_result(names: Sequence[str], results: Results) -> str:
    """Say what these cases of a test did when they last ran."""
    cases = [results[name] for name in names if name in results]
    if not cases:
        return "has not run yet"
    outcomes = Counter(str(case["outcome"]) for case in cases)
    seconds = sum(case["seconds"] for case in cases)
    words = ", ".join(outcome if len(cases) == 1 else f"{count} {outcome}" for outcome, count in outcomes.items())
    return f"{words}; {seconds:.1f} s; {max(str(case['date']) for case in cases)}"


def recovery_times(recoveries: Sequence[Recovery]) -> str:
    """How long it took until the tasks of the dead ran again or were settled: words and a table, without a heading."""
    rows = [
        (each.fault, f"{each.ttl:g}", str(each.measured), f"{each.median:.2f}", f"{each.largest:.2f}", promised(each))
        for each in recoveries
    ]
    return RECOVERY + table(("fault", "TTL", "measured", "median", "largest", "bound"), rows)


def with_recovery_times(text: str, recoveries: Sequence[Recovery]) -> str:
    """Return the page of guarantees with these recovery times between its two comments."""
    before, begin, rest = text.partition("<!-- recovery: written by `python -m tests.catalogue` -->\n")
    _, end, after = rest.partition("<!-- /recovery -->")
    return f"{before}{begin}{recovery_times(recoveries)}{end}{after}"


def promised(recovery: Recovery) -> str:
    return "at once" if recovery.bound is None else f"{recovery.bound:.2f}"


def section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, or a word that there is nothing."""
    if not rows:
        return "Nothing yet.\n"
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(map(cell, line)) + " |\n" for line in lines)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def results(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Read what the tests did when they last ran: test → {"outcome", "seconds", "date"}."""
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def gaps(defences: Iterable[Defence]) -> Iterator[str]:
    """Yield every disagreement between the list of faults, the marks and the reasons."""
    marked: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in defences:
        marked[each.group, each.fault].append(each.test)
    listed = {(group, fault) for group, faults in FAULTS.items() for fault in faults}
    for group, fault in sorted(listed - set(marked) - set(NOT_TESTED)):
        yield f"{group}: {fault}: neither a test nor a reason"
    for (group, fault), tests in sorted(marked.items()):
        if (group, fault) not in listed:
            yield f"{group}: {fault}: not in tests/catalogue/faults.py, but in {', '.join(tests)}"
        elif (group, fault) in NOT_TESTED:
            yield f"{group}: {fault}: said not to be tested, but is by {', '.join(tests)}"
    for group, fault in sorted(set(NOT_TESTED) - listed):
        yield f"{group}: {fault}: has a reason, but is not in tests/catalogue/faults.py"
