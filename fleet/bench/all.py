"""Every scenario, one after another on one server: progress for a person, one document for the figures."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

from fleet.bench import machine
from fleet.bench.command import SCENARIOS
from fleet.bench.result import Result, as_json, shown
from fleet.bench.stage import Stage, opened
from fleet.cli.output import Columns, print_rows, say

_COLUMNS: Columns = {
    "RUN": "run",
    "FIGURE": "figure",
    "VALUE": "value",
    "WANTED": "wanted",
    "REACHED": "reached",
}


class Run(NamedTuple):
    """One scenario with one set of options; `changed` are those that are not its defaults."""

    scenario: str
    changed: Mapping[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        return {name: default for name, (default, _) in SCENARIOS[self.scenario].options.items()} | dict(self.changed)

    def __str__(self) -> str:
        words = ", ".join(f"{name} {value}" for name, value in self.changed.items())
        return f"{self.scenario} ({words})" if words else self.scenario


def run_all(server_url: str | None, *, quick: bool, save: Path | None, output: str) -> bool:
    """Run every scenario, smaller where `quick`, and return whether all of them could be measured.

    A goal that is not reached fails nothing. What was found is written to `save` after each run, so that a Ctrl-C in the
    middle loses no more than the run that it interrupts.
    """
    runs = list(planned(quick=quick))
    with opened(server_url, say) as stage:
        document = {"machine": machine.describe(stage.server_url), "quick": quick, "results": [], "failures": []}
        for found, failed in each(stage, runs, measure):
            document |= {"results": found, "failures": failed}
            if save is not None:
                save.write_text(as_json(document) + "\n", encoding="utf-8")
    return _show(document, output)


def planned(*, quick: bool) -> Iterator[Run]:
    """Yield what is to be run, in the order of the table of scenarios."""
    for name, scenario in SCENARIOS.items():
        for changed in scenario.quick if quick else scenario.runs:
            yield Run(name, changed)


def measure(stage: Stage, run: Run) -> Result:
    """Run one scenario."""
    result: Result = import_module(f"fleet.bench.scenarios.{run.scenario}").measure(stage, **run.options)
    return result


def each(
    stage: Stage, runs: Sequence[Run], measure: Callable[[Stage, Run], Result]
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, str]]]]:
    """Run one after another, and yield after each what was found, and what failed, so far."""
    found: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    yield found, failed
    for number, run in enumerate(runs, start=1):
        say(f"[{number} of {len(runs)}] {run}")
        try:
            result = measure(stage, run)
        except Exception as error:  # noqa: BLE001 - the other scenarios can still be measured, and this one is named at the end
            say(traceback.format_exc())
            failed.append({"run": str(run), "error": f"{type(error).__name__}: {error}"})
        else:
            say("\n".join(result.lines()))
            found.append({"run": str(run)} | result.document())
        yield found, failed


def _show(document: Mapping[str, Any], output: str) -> bool:
    """Print every goal, or everything as JSON, and then what failed."""
    if output == "json":
        click.echo(as_json(document))
    else:
        print_rows(list(goals(document)), _COLUMNS, output, empty="no scenario with a goal was measured")
    for failure in document["failures"]:
        say(f"failed: {failure['run']}: {failure['error']}")
    return not document["failures"]


def goals(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every goal of every result, with its value and whether it was reached."""
    for result in document["results"]:
        for goal in result["goals"]:
            yield {
                "run": result["run"],
                "figure": goal["figure"].replace("_", " "),
                "value": shown(result[goal["figure"]]),
                "wanted": goal["wanted"],
                "reached": goal["met"],
            }
