"""How fast a backlog is worked off, against the bare loop with as many slots."""

from collections.abc import Callable, Sequence
from functools import partial

from fleet.bench.result import Figures, Goal, Result, alternate, medians
from fleet.bench.stage import Stage, fill, server_cpu_seconds


def measure(
    stage: Stage, *, processes: int, slots: int, work_ms: float, tasks: int, threads: bool, rounds: int
) -> Result:
    """Run fleet and the bare loop in turn; with several processes a single one of fleet, too."""
    name = "work_in_thread" if threads else "work"

    def fleet(processes: int) -> Figures:
        with stage.database() as url:
            return drain(stage, url, processes=processes, slots=slots, work_ms=work_ms, tasks=tasks, name=name)

    def ceiling() -> Figures:
        with stage.database(migrated=False) as url:
            return stage.play("fleet.bench.sides.ceiling", url=url, tasks=tasks, slots=slots, work_ms=work_ms)

    sides: dict[str, Callable[[], Figures]] = {"fleet": partial(fleet, processes), "ceiling": ceiling}
    if processes > 1:
        sides["one_process"] = partial(fleet, 1)
    found = alternate(sides, rounds, stage.say)
    middle = {side: medians(each) for side, each in found.items()}
    figures = middle["fleet"]
    goals = []
    for side in list(sides)[1:]:
        figures[f"{side}_tasks_per_second"] = middle[side]["tasks_per_second"]
        figures[f"ratio_to_{side}"] = figures["tasks_per_second"] / middle[side]["tasks_per_second"]
    if (processes, slots, work_ms, threads) == (1, 256, 1, False):
        goals.append(Goal("ratio_to_ceiling", at_least=0.65))
    if processes > 1:
        goals.append(Goal("ratio_to_one_process", at_least=0.9))
    setup = {"processes": processes, "slots": slots, "work_ms": work_ms, "tasks": tasks, "threads": threads}
    every = [
        {f"{side}_tasks_per_second": each[number]["tasks_per_second"] for side, each in found.items()}
        for number in range(rounds)
    ]
    return Result("drain", setup, figures, goals, every)


def drain(
    stage: Stage,
    url: str,
    *,
    processes: int,
    slots: int,
    work_ms: float,
    tasks: int,
    name: str,
    queues: Sequence[str] = ("default",),
) -> Figures:
    """Fill queues that are paused, start the workers, let them go, and say what it took."""
    with stage.workers(url, processes, work_ms=work_ms, queues=queues, slots=slots) as crew:
        crew.pause(queues)
        fill(crew.connection, tasks, queues=queues, name=name)
        workers, server = crew.worker_cpu_seconds(), server_cpu_seconds(crew.connection)
        crew.resume(queues)
        return crew.drained() | {
            "worker_cpu_microseconds_per_task": (crew.worker_cpu_seconds() - workers) / tasks * 1e6,
            "server_cpu_microseconds_per_task": (server_cpu_seconds(crew.connection) - server) / tasks * 1e6,
        }
