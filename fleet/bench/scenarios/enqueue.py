"""How fast tasks are submitted: one by one, in the caller's transaction, many at once; and bare statements beside them."""

from fleet.bench.result import Figures, Result, alternate, medians
from fleet.bench.stage import Stage

WAYS = ("single", "commit_per_1", "commit_per_100", "many")


def measure(stage: Stage, *, singles: int, many: int, rounds: int) -> Result:
    """Run fleet and the bare statements in turn."""

    def side(system: str) -> Figures:
        with stage.database(migrated=system == "fleet") as url:
            return stage.play("fleet.bench.sides.submit", url=url, system=system, singles=singles, many=many)

    found = alternate({"fleet": lambda: side("fleet"), "bare": lambda: side("bare")}, rounds, stage.say)
    ours, bare = medians(found["fleet"]), medians(found["bare"])
    figures: dict[str, float] = {}
    for way in WAYS:
        name = f"{way}_rows_per_second"
        figures |= {
            name: ours[name],
            f"bare_{name}": bare[name],
            f"{way}_ratio_to_bare": ours[name] / bare[name],
        }
    every = [{"fleet": mine, "bare": theirs} for mine, theirs in zip(found["fleet"], found["bare"], strict=True)]
    return Result("enqueue", {"singles": singles, "many": many}, figures, rounds=every)
