"""Plots of what `fleet bench` has measured, as SVG that is readable on light pages and on dark ones. Needs matplotlib."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fleet.bench.result import shown

Found = Mapping[str, Any]  # one result, as `Result.document` makes it

_WIDTH_INCHES = 7.0
_ROW_INCHES = 0.42
_FRAME_INCHES = 0.75
_GREY = "#808890"  # enough of a contrast on white and on near-black
_OURS = "#3f86d2"
_OTHERS = "#a0a6ad"
_BOUND = "#d2773f"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fleet",  # the same figures make the same file
    "font.size": 10,
    "text.color": _GREY,
    "axes.labelcolor": _GREY,
    "axes.edgecolor": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(files: Sequence[Path], directory: Path) -> list[Path]:
    """Draw what can be drawn from these files, and return the plots that were written.

    A file is what `--save` wrote, or one scenario's JSON. Of a scenario that ran with several sets of options the first
    counts, but for the drains, which are all drawn.
    """
    found = [result for file in files for result in results(json.loads(file.read_text(encoding="utf-8")))]
    directory.mkdir(parents=True, exist_ok=True)
    plots: Mapping[str, tuple[float, Callable[[Axes, Sequence[Found]], bool]]] = {
        "drain": (_height(_of(found, "drain")), drains),
        "peers": (_height(list(systems(found))), peers),
        "snapshot": (2.8, snapshot),
        "pickup": (_height(list(latencies(found))), pickup),
        "recovery": (3.2, recovery),
    }
    return [
        path
        for name, (height, plot) in plots.items()
        if (path := _save(directory / f"{name}.svg", height, plot, found))
    ]


def results(document: Any) -> Iterator[Found]:
    """Yield the results that a file holds."""
    yield from document.get("results", [document])


def drains(axes: Axes, found: Sequence[Found]) -> bool:
    """Draw a bar for each drain, and a mark where the bare loop was in the same run."""
    rows = _of(found, "drain")
    for row, result in enumerate(rows):
        rate, ceiling = result["tasks_per_second"], result["ceiling_tasks_per_second"]
        axes.barh(row, rate, height=0.55, color=_OURS)
        axes.plot([ceiling, ceiling], [row - 0.38, row + 0.38], color=_BOUND, linewidth=2)
        words = f"{shown(rate)} /s, {rate / ceiling:.2f} of the bare loop"
        axes.annotate(words, (max(rate, ceiling), row), (6, 0), textcoords="offset points", va="center")
    _name_rows(axes, [drain_words(result["setup"]) for result in rows])
    if rows:
        first = rows[0]["ceiling_tasks_per_second"]
        axes.annotate("bare loop", (first, -0.4), (0, 2), textcoords="offset points", color=_BOUND, ha="center")
    _bars_only(axes)
    return bool(rows)


def drain_words(setup: Found) -> str:
    """Say what is special about a drain."""
    processes = setup["processes"]
    threads = ", threads" if setup.get("threads") else ""
    workers = f"{processes} process" + ("es" if processes > 1 else "")
    return f"{workers}, {setup['slots']} slots, {setup['work_ms']:g} ms{threads}"


def peers(axes: Axes, found: Sequence[Found]) -> bool:
    """Draw a bar for the drain of each system, the fastest first."""
    rows = sorted(systems(found), key=lambda row: -row[1])
    for row, (name, rate) in enumerate(rows):
        axes.barh(row, rate, height=0.55, color=_OURS if name == "fleet" else _OTHERS)
        axes.annotate(f"{shown(rate)} /s", (rate, row), (6, 0), textcoords="offset points", va="center")
    _name_rows(axes, [name for name, _ in rows])
    _bars_only(axes)
    return bool(rows)


def systems(found: Sequence[Found]) -> Iterator[tuple[str, float]]:
    """Yield each system that was compared, and how many tasks a second it worked off."""
    ending = "_drain_tasks_per_second"
    for result in _of(found, "peers")[:1]:
        yield from ((name.removesuffix(ending), rate) for name, rate in result.items() if name.endswith(ending))


def snapshot(axes: Axes, found: Sequence[Found]) -> bool:
    """Draw the rate of each round under a held snapshot, from zero up."""
    for result in (first := _of(found, "snapshot")[:1]):
        rates = [result[f"backlog_{number}_tasks_per_second"] for number in range(1, result["setup"]["backlogs"] + 1)]
        axes.plot(range(1, len(rates) + 1), rates, color=_OURS, marker="o", linewidth=2)
        for number, rate in ((1, rates[0]), (len(rates), rates[-1])):
            axes.annotate(f"{shown(rate)} /s", (number, rate), (0, 9), textcoords="offset points", ha="center")
        axes.set_ylim(0, 1.25 * max(rates))
        axes.set_xlim(0.6, len(rates) + 0.4)
        axes.set_xticks(range(1, len(rates) + 1))
        axes.set_xlabel(f"round of {result['setup']['tasks']:,} tasks, under a snapshot older than all of them")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    return bool(first)


def pickup(axes: Axes, found: Sequence[Found]) -> bool:
    """Draw the middle and the 99th hundredth of each way to be picked up, on a scale of powers."""
    rows = list(latencies(found))
    for row, (words, middle, late) in enumerate(rows):
        colour = _OTHERS if "bare" in words else _OURS
        axes.plot([middle, late], [row, row], color=colour, linewidth=2, marker="o")
        axes.annotate(shown(middle), (middle, row), (-8, 0), textcoords="offset points", va="center", ha="right")
        axes.annotate(shown(late), (late, row), (8, 0), textcoords="offset points", va="center")
    _name_rows(axes, [words for words, _, _ in rows])
    if rows:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(min(middle for _, middle, _ in rows) / 2.5, max(late for _, _, late in rows) * 2.5)
        axes.annotate("half of the tasks", (rows[0][1], 0), (0, 14), textcoords="offset points", ha="right")
        axes.annotate("99 of 100", (rows[0][2], 0), (0, 14), textcoords="offset points", ha="left")
        axes.set_xlabel("milliseconds from submit to start")
        axes.spines["left"].set_visible(False)
    return bool(rows)


def latencies(found: Sequence[Found]) -> Iterator[tuple[str, float, float]]:
    """Yield how tasks were picked up: in words, the middle, and the 99th hundredth, in milliseconds."""
    sides = {
        "pickup": {"floor": "a bare LISTEN", "idle": "idle worker", "half_load": "half load"},
        "near_empty": {"without": "half load, near empty", "held": "the same, snapshot held"},
    }
    for scenario, named in sides.items():
        for result in _of(found, scenario)[:1]:
            for side, words in named.items():
                yield words, result[f"{side}_p50_milliseconds"], result[f"{side}_p99_milliseconds"]


def recovery(axes: Axes, found: Sequence[Found]) -> bool:
    """Draw each kill: how old the last renewal was, how long it took to the next start, and what was wanted."""
    for result in (first := _of(found, "recovery")[:1]):
        ttl, bound = result["setup"]["ttl_seconds"], result["bound_seconds"]
        ages = [kill["since_renewal_seconds"] for kill in result["rounds"]]
        axes.scatter(ages, [kill["seconds"] for kill in result["rounds"]], color=_OURS, s=18, alpha=0.8, linewidths=0)
        right = 1.05 * max(ages)
        for level, words, colour in ((bound, "wanted:\nat most", _BOUND), (ttl, "TTL", _GREY)):
            axes.axhline(level, color=colour, linewidth=1, linestyle=(0, (4, 3)))
            said = f"{words} {level:g} s"
            axes.annotate(said, (right, level), (6, 0), textcoords="offset points", color=colour, va="center")
        axes.set_xlim(0, right)
        axes.set_ylim(0, 1.12 * max(bound, result["largest_seconds"]))
        axes.set_xlabel("seconds from the last heartbeat to SIGKILL")
        axes.set_ylabel("seconds to the next start")
    return bool(first)


def _of(found: Sequence[Found], scenario: str) -> list[Found]:
    return [result for result in found if result["scenario"] == scenario]


def _height(rows: Sequence[object]) -> float:
    return _FRAME_INCHES + _ROW_INCHES * len(rows)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.9)  # the first on top, and room for words above it
    axes.tick_params(axis="y", length=0)


def _bars_only(axes: Axes) -> None:
    """Leave the scale out: every bar says its value."""
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _save(
    path: Path, height: float, plot: Callable[[Axes, Sequence[Found]], bool], found: Sequence[Found]
) -> Path | None:
    """Write one plot; None where there is nothing to draw."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        if not plot(figure.add_subplot(), found):
            return None
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
    return path
