"""Whether a worker gets slower while another session holds a snapshot, so that nothing dead can be removed."""

from fleet.bench.result import Goal, Result, shown
from fleet.bench.rounds import held_snapshot, warm_up, work_off
from fleet.bench.stage import Stage

ROUNDS = 5


def measure(stage: Stage, *, slots: int, tasks: int) -> Result:
    """Let one worker process work off five backlogs; the snapshot is older than all of them."""
    figures: dict[str, float] = {}
    with stage.database() as url, stage.workers(url, slots=slots) as crew:
        warm_up(crew)
        with held_snapshot(url):
            for number in range(1, ROUNDS + 1):
                rate = work_off(crew, tasks)
                figures[f"round_{number}_tasks_per_second"] = rate
                stage.say(f"  round {number} of {ROUNDS}  {shown(rate)} tasks per second")
    first, fifth = figures["round_1_tasks_per_second"], figures[f"round_{ROUNDS}_tasks_per_second"]
    figures["ratio_fifth_to_first"] = fifth / first
    setup = {"slots": slots, "work_ms": 1, "tasks": tasks, "rounds": ROUNDS}
    return Result("snapshot", setup, figures, [Goal("ratio_fifth_to_first", at_least=0.9)])
