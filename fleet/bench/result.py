"""What a scenario found, what was wanted of it, and how both are shown."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one figure."""

    figure: str
    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one scenario. Names end in their unit, such as `tasks_per_second`; a ratio has none."""

    scenario: str
    setup: Mapping[str, Any]
    figures: Figures
    goals: Sequence[Goal] = ()
    rounds: Sequence[Mapping[str, Any]] = field(default=())

    def document(self) -> dict[str, Any]:
        """Return everything as one flat object for JSON: the figures stand at the top."""
        goals = [
            {"figure": goal.figure, "wanted": str(goal), "met": goal.met(self.figures[goal.figure])}
            for goal in self.goals
        ]
        return {
            "scenario": self.scenario,
            **self.figures,
            "setup": dict(self.setup),
            "goals": goals,
            "rounds": [dict(each) for each in self.rounds],
        }

    def lines(self) -> list[str]:
        """Return one line for each figure, with what was wanted of it."""
        goals = {goal.figure: goal for goal in self.goals}
        lines = [f"{self.scenario}: " + ", ".join(f"{name} {value}" for name, value in self.setup.items())]
        for name, value in self.figures.items():
            goal = goals.get(name)
            wanted = f"   wanted {goal}: {'reached' if goal.met(value) else 'NOT REACHED'}" if goal else ""
            lines.append(f"  {name.replace('_', ' '):<48} {shown(value):>12}{wanted}")
        return lines


def shown(value: float) -> str:
    """Write a number with three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def medians(rounds: Sequence[Figures]) -> dict[str, float]:
    """Return the median of each figure over the rounds."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def alternate(
    sides: Mapping[str, Callable[[], Figures]], rounds: int, say: Callable[[str], None]
) -> dict[str, list[Figures]]:
    """Run every side in each round, every other round in the opposite order, and return what each of them measured."""
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            figures = sides[name]()
            found[name].append(figures)
            said = ", ".join(f"{figure.replace('_', ' ')} {shown(value)}" for figure, value in figures.items())
            say(f"  round {number + 1} of {rounds}  {name}: {said}")
    return found


def as_json(document: object) -> str:
    """Return the text of a JSON document, numbers to five digits that count."""
    return json.dumps(json.loads(json.dumps(document), parse_float=lambda text: float(f"{float(text):.5g}")), indent=2)
