"""How long a task waits from submit to its handler's first line: worker idle, worker at half load, and the floor."""

from typing import Any

from fleet.bench.load import WARM_UP, half_capacity
from fleet.bench.result import Figures, Result, alternate, medians
from fleet.bench.stage import Stage

_BATCH_MAX = 1_000_000  # the time alone decides how much is submitted at once


def measure(
    stage: Stage,
    *,
    tasks: int,
    every_ms: float,
    slots: int,
    rate: float,
    work_ms: float,
    batch_ms: float,
    seconds: float,
    rounds: int,
) -> Result:
    """Run fleet idle, a bare LISTEN beside it, and fleet at a rate (0: half of what a short drain reaches), in turn."""
    rate = rate or half_capacity(stage, slots=slots, work_ms=work_ms)
    usual: dict[str, Any] = {"slots": slots, "settle_seconds": WARM_UP.total_seconds()}
    load: dict[str, Any] = {"rate": rate, "seconds": seconds, "batch_ms": batch_ms, "batch_max": _BATCH_MAX}

    def idle() -> Figures:
        with stage.database() as url:
            return stage.play("fleet.bench.sides.pickup", url=url, work_ms=0.0, tasks=tasks, every_ms=every_ms, **usual)

    def floor() -> Figures:
        with stage.database(migrated=False) as url:
            return stage.play("fleet.bench.sides.listen_floor", url=url, tasks=tasks, every_ms=every_ms)

    def half_load() -> Figures:
        with stage.database() as url:
            return stage.play("fleet.bench.sides.pickup", url=url, work_ms=work_ms, **usual, **load)

    sides = {"idle": idle, "floor": floor, "half_load": half_load}
    found = alternate(sides, rounds, stage.say)
    middle = {side: medians(each) for side, each in found.items()}
    figures = {f"{side}_{name}": value for side, each in middle.items() for name, value in each.items()}
    for name in ("p50", "p99"):
        ours, bare = (middle[side][f"{name}_milliseconds"] for side in ("idle", "floor"))
        figures[f"idle_{name}_ratio_to_floor"] = ours / bare
    every = [{side: found[side][number] for side in sides} for number in range(rounds)]
    setup = {"tasks": tasks, "every_ms": every_ms, "slots": slots, "work_ms": work_ms, "batch_ms": batch_ms}
    return Result("pickup", setup | {"seconds": seconds}, figures, rounds=every)
