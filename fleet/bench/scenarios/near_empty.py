"""Whether a task of a queue that is near empty waits longer while some session holds an old snapshot.

The dead versions of everything that has gone through lie before it then: vacuum may not take them away.
"""

from contextlib import nullcontext

from fleet.bench.load import half_capacity, offer
from fleet.bench.result import Figures, Goal, Result, alternate, medians
from fleet.bench.rounds import held_snapshot
from fleet.bench.stage import Stage, fill, settle_down


def measure(
    stage: Stage, *, tasks: int, rate: float, seconds: float, slots: int, work_ms: float, rounds: int
) -> Result:
    """Put tasks through one worker, then offer it a rate (0: half of what a short drain reaches); held and not, in turn."""
    rate = rate or half_capacity(stage, slots=slots, work_ms=work_ms)

    def side(*, held: bool) -> Figures:
        with (
            stage.database() as url,
            held_snapshot(url) if held else nullcontext(),
            stage.workers(url, work_ms=work_ms, slots=slots) as crew,
        ):
            crew.pause()
            fill(crew.connection, tasks)
            crew.resume()
            crew.drained()
            settle_down(crew.connection, "fleet.task")
            load = offer(stage, url, crew, rate, seconds)
            return {name: load[name] for name in load if name != "tasks"}

    sides = {"held": lambda: side(held=True), "without": lambda: side(held=False)}
    found = alternate(sides, rounds, stage.say)
    held, without = medians(found["held"]), medians(found["without"])
    figures = {f"held_{name}": value for name, value in held.items()}
    figures |= {f"without_{name}": value for name, value in without.items()}
    for name in ("p50", "p99"):
        figures[f"{name}_ratio_held_to_without"] = held[f"{name}_milliseconds"] / without[f"{name}_milliseconds"]
    every = [{name: found[name][number] for name in sides} for number in range(rounds)]
    goals = [Goal("p99_ratio_held_to_without", at_most=3)]
    setup = {"tasks": tasks, "rate": round(rate), "seconds": seconds, "slots": slots, "work_ms": work_ms}
    return Result("near_empty", setup, figures, goals, every)
