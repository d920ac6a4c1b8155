"""What a run has shown, and its verdict."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fleet.verify import Answer, Report
from fleet.verify.history import lines
from tests.chaos.plan import Quota
from tests.chaos.timing import timings

# A run of ten minutes that did not even exercise these has proved nothing.
WHOLE_SECONDS = 600
MUST_PASS = ("S1", "S2", "S3", "S4", "S6", "S8", "S15", "S16")


@dataclass
class Result:
    folder: Path
    seed: int
    seconds: float
    done: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    states: dict[str, int] = field(default_factory=dict)
    snapshot_seconds: float = 0.0
    settled_seconds: float | None = None
    exits: dict[str, int | None] = field(default_factory=dict)
    report: Report | None = None

    @property
    def reached(self) -> Quota:
        cut = self.done["cut after"] + self.done["cut a submission"]
        return Quota(self.done["kill"], self.done["pause past the TTL"], self.done["crash"], cut)

    def reasons(self) -> list[str]:
        """Why this run has not passed, in words; empty where it has."""
        wanted, reached = Quota().of(self.seconds), self.reached
        found = [
            f"{name.replace('_', ' ')}: {getattr(reached, name)} of {getattr(wanted, name)}"
            for name in ("kills", "long_pauses", "restarts", "cut_replies")
            if getattr(reached, name) < getattr(wanted, name)
        ]
        if self.settled_seconds is None:
            found.append("not everything became terminal in time")
        found.extend(
            f"{worker} was asked to drain and ended with {code}" for worker, code in self.exits.items() if code != 0
        )
        if self.report is None:
            return [*found, "nothing was judged"]
        for each in self.report.verdicts:
            unproven = each.code in MUST_PASS and self.seconds >= WHOLE_SECONDS and each.answer is Answer.UNKNOWN
            if each.answer is Answer.FAIL or unproven:
                found.append(f"{each.code} {each.answer}: {each.detail}\n{each.story}")
        return found

    @property
    def passed(self) -> bool:
        return not self.reasons()

    def show(self) -> None:
        console = Console(width=120)
        faults = Table("fault", "done", "missed", title="What was broken")
        for name in sorted(self.done | self.missed):
            faults.add_row(name, str(self.done[name]), str(self.missed[name] or ""))
        console.print(faults)
        ends = Table("end", "tasks", title="What became of the tasks")
        for state, number in self.states.items():
            ends.add_row(state, f"{number:,}")
        console.print(ends)
        times = Table("statement", "part", "count", "p50 ms", "p99 ms", title="How long claims and renewals took")
        for what, part, number, p50, p99 in timings(self.folder):
            times.add_row(what, part, f"{number:,}", f"{p50:.1f}", f"{p99:.1f}")
        console.print(times)
        if self.report is not None:
            verdicts = Table("promise", "", "verdict", "by", title="What was judged")
            for each in self.report.verdicts:
                verdicts.add_row(each.code, each.title, each.answer, each.detail)
            console.print(verdicts)
        console.print(f"Picture: {self.folder / 'timeline.png'}", soft_wrap=True)
        for reason in self.reasons():
            console.print(f"not passed: {reason}", style="red", soft_wrap=True)

    def record(self) -> dict[str, object]:
        """What is published of a run, in the words of the page of faults."""
        reached = self.reached
        return {
            "seed": self.seed,
            "seconds": round(self.seconds),
            "tasks accepted": f"{self.accepted:,}",
            "kills": reached.kills,
            "pauses past the TTL": reached.long_pauses,
            "crashes of the server": reached.restarts,
            "replies cut off": reached.cut_replies,
            "late reports refused": sum(line["what"] == "fenced" for line in lines(self.folder)),
            "all ended after": "never" if self.settled_seconds is None else f"{self.settled_seconds:.1f}",
            "verdict": "pass" if self.passed else "fail",
            "date": datetime.now(UTC).date().isoformat(),
        }

    def summary(self, seconds: float) -> str:
        reached = self.reached
        ended = "never" if self.settled_seconds is None else f"{self.settled_seconds:.1f} s after the faults"
        verdict = "pass" if self.passed else "FAIL"
        return (
            f"chaos: {verdict} (seed {self.seed}, {seconds:.0f} s): {self.accepted:,} tasks accepted, {reached.kills} kills,"
            f" {reached.long_pauses} pauses past the TTL, {reached.restarts} crashes of the server, {reached.cut_replies}"
            f" replies cut off; a snapshot held for {self.snapshot_seconds:.0f} s; all ended {ended}"
        )
