"""Whether a worker gets slower while another session holds a snapshot, so that nothing dead can be removed."""

from fleet.bench.result import Figures, Goal, Result, medians, shown
from fleet.bench.rounds import held_snapshot, warm_up, work_off
from fleet.bench.stage import Crew, Stage

BACKLOGS = 5


def measure(stage: Stage, *, slots: int, tasks: int, rounds: int) -> Result:
    """Let one worker process work off five backlogs; the snapshot is older than all of them."""
    found: list[Figures] = []
    for number in range(rounds):
        with stage.database() as url, stage.workers(url, slots=slots) as crew:
            found.append(work_off_five(crew, url, tasks))
        stage.say(f"  round {number + 1} of {rounds}: " + ", ".join(shown(rate) for rate in found[-1].values()))
    figures = medians(found)
    setup = {"slots": slots, "work_ms": 1, "tasks": tasks, "backlogs": BACKLOGS, "rounds": rounds}
    return Result("snapshot", setup, figures, [Goal("ratio_fifth_to_first", at_least=0.9)], found)


def work_off_five(crew: Crew, url: str, tasks: int) -> Figures:
    """Return tasks per second of each backlog."""
    warm_up(crew)
    with held_snapshot(url):
        rates = [work_off(crew, tasks) for _ in range(BACKLOGS)]
    figures = {f"backlog_{number}_tasks_per_second": rate for number, rate in enumerate(rates, start=1)}
    return figures | {"ratio_fifth_to_first": rates[-1] / rates[0]}
