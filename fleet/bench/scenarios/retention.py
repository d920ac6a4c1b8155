"""Whether claims at half load wait while old tasks are pruned as a worker prunes them: bounded, and with rests between."""

from concurrent.futures import ThreadPoolExecutor

import psycopg

from fleet.bench.load import half_capacity, produce
from fleet.bench.result import Figures, Goal, Result, alternate, medians
from fleet.bench.scenarios.prune import fill_old
from fleet.bench.stage import Stage

_AROUND_SECONDS = 6.0  # the load begins before the worker does, and ends after what is measured


def measure(stage: Stage, *, old_tasks: int, rate: float, seconds: float, slots: int, rounds: int) -> Result:
    """Offer a rate (0: half of what a short drain reaches) beside old tasks that are pruned, and beside as many that stay."""
    rate = rate or half_capacity(stage, slots=slots, work_ms=1)

    def side(*, pruning: bool) -> Figures:
        with stage.database() as url, ThreadPoolExecutor(1) as pool:
            with psycopg.connect(url, autocommit=True) as connection:
                fill_old(connection, old_tasks)
            offered = pool.submit(produce, stage, url, rate, seconds + _AROUND_SECONDS)
            figures = stage.play("fleet.bench.sides.forgetting", url=url, slots=slots, seconds=seconds, pruning=pruning)
            return figures | {"offered_tasks_per_second": offered.result()["offered_tasks_per_second"]}

    sides = {"alone": lambda: side(pruning=False), "pruning": lambda: side(pruning=True)}
    found = alternate(sides, rounds, stage.say)
    alone, pruning = medians(found["alone"]), medians(found["pruning"])
    figures = {f"alone_{name}": value for name, value in alone.items() if not name.startswith("pruned")}
    figures |= {f"pruning_{name}": value for name, value in pruning.items()}
    for name in ("p50", "p99"):
        figures[f"ratio_claim_{name}"] = pruning[f"claim_{name}_milliseconds"] / alone[f"claim_{name}_milliseconds"]
    every = [
        {f"{name}_{figure}": value for name in sides for figure, value in found[name][number].items()}
        for number in range(rounds)
    ]
    setup = {"old_tasks": old_tasks, "rate": round(rate), "seconds": seconds, "slots": slots, "work_ms": 1}
    return Result("retention", setup, figures, [Goal("ratio_claim_p99", at_most=2)], every)
