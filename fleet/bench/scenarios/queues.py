"""What it costs a worker to serve many queues: the same backlog in one of them, and spread over more."""

from functools import partial

from fleet.bench.result import Figures, Result, alternate, medians
from fleet.bench.scenarios.drain import drain
from fleet.bench.stage import Stage

SPREADS = (1, 10, 100)


def measure(stage: Stage, *, tasks: int, rounds: int) -> Result:
    """Drain the same number of tasks from 1, 10 and 100 queues, all served by one worker process."""

    def side(queues: int) -> Figures:
        names = [f"queue-{number}" for number in range(queues)]
        with stage.database() as url:
            return drain(stage, url, processes=1, slots=256, work_ms=1, tasks=tasks, name="work", queues=names)

    def for_(queues: int) -> str:
        return "one_queue" if queues == 1 else f"{queues}_queues"

    found = alternate({for_(spread): partial(side, spread) for spread in SPREADS}, rounds, stage.say)
    middle = {name: medians(each) for name, each in found.items()}
    figures = {f"{name}_{figure}": value for name, each in middle.items() for figure, value in each.items()}
    for spread in SPREADS[1:]:
        figures[f"ratio_{for_(spread)}_to_one"] = (
            middle[for_(spread)]["tasks_per_second"] / middle["one_queue"]["tasks_per_second"]
        )
    every = [
        {f"{name}_tasks_per_second": each[number]["tasks_per_second"] for name, each in found.items()}
        for number in range(rounds)
    ]
    return Result("queues", {"slots": 256, "work_ms": 1, "tasks": tasks}, figures, rounds=every)
