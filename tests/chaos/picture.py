"""One picture of a run: what was finished each second, and below it what was broken meanwhile."""

from collections import Counter, defaultdict
from pathlib import Path

from fleet.verify.history import lines

INK, GOOD, BAD, MARK = "#334155", "#0f766e", "#be123c", "#f59e0b"


def draw(folder: Path, target: Path) -> None:
    """Write the picture of the run in `folder` as PNG or SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    faults: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    ended: Counter[int] = Counter()
    fenced: list[float] = []
    for line in lines(folder):
        match line["what"]:
            case "settled":
                ended[int(line["at"])] += 1
            case "fenced":
                fenced.append(line["at"])
            case "restarted":
                faults[line["target"]].append((line["began"], line["seconds"], line["fault"]))
            case "fault" if "target" in line:
                faults[line["target"]].append((line["at"], line.get("seconds") or 0.0, line["fault"]))
    begin = min([*ended, *[int(at) for each in faults.values() for at, _, _ in each]], default=0)
    end = max([*ended, begin + 1])
    targets = sorted(faults, reverse=True)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(14, 3 + 0.45 * len(targets)), sharex=True, height_ratios=[2, max(1, len(targets)) * 0.45]
    )
    seconds = range(begin, end + 1)
    above.fill_between(
        [second - begin for second in seconds], [ended[second] for second in seconds], step="post", color=GOOD
    )
    above.plot(
        [at - begin for at in fenced], [0] * len(fenced), "v", color=BAD, label="late report refused", clip_on=False
    )
    above.set_ylabel("attempts ended\nin each second", color=INK)
    above.legend(loc="upper right", frameon=False)
    for place, target_name in enumerate(targets):
        bars = [(at - begin, max(lasting, 0.4)) for at, lasting, _ in faults[target_name]]
        colours = [_colour(fault) for _, _, fault in faults[target_name]]
        below.broken_barh(bars, (place - 0.35, 0.7), facecolors=colours)
    below.set_yticks(range(len(targets)), targets)
    below.set_xlabel("seconds · red: killed or crashed, amber: stopped or cut off, grey: other faults", color=INK)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    plt.close(figure)


def _colour(fault: str) -> str:
    if fault in ("kill", "crash", "end all sessions", "drain"):
        return BAD
    if fault.startswith(("pause", "partition", "freeze", "half", "swizzle", "left")):
        return MARK
    return "#94a3b8"
