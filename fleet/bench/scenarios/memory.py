"""Whether a worker grows with the tasks that it has run: its resident memory early in its life, and much later."""

import psutil

from fleet.bench.result import Goal, Result
from fleet.bench.stage import Crew, Stage, fill

_MEBIBYTE = 1024 * 1024
_USUAL = (100_000, 1_000_000)


def measure(stage: Stage, *, early: int, late: int, portion: int, slots: int, work_ms: float) -> Result:
    """Look at the memory of one worker process after `early` tasks, and after `late` of them."""
    seen: dict[int, float] = {}
    with stage.database() as url, stage.workers(url, work_ms=work_ms, slots=slots) as crew:
        done = 0
        while done < late:
            ahead = early if done < early else late
            tasks = min(portion, ahead - done)
            work_off(crew, tasks)
            done += tasks
            seen[done] = psutil.Process(crew.processes[0].pid).memory_info().rss / _MEBIBYTE
            stage.say(f"  {done:,} of {late:,} tasks: {seen[done]:.1f} MiB resident")
    figures = {
        "early_resident_mebibytes": seen[early],
        "late_resident_mebibytes": seen[late],
        "ratio_of_late_to_early": seen[late] / seen[early],
    }
    goals = [Goal("ratio_of_late_to_early", at_most=1.1)] if (early, late) == _USUAL else []
    setup = {"early": early, "late": late, "portion": portion, "slots": slots, "work_ms": work_ms}
    every = [{"tasks": tasks, "resident_mebibytes": resident} for tasks, resident in seen.items()]
    return Result("memory", setup, figures, goals, every)


def work_off(crew: Crew, tasks: int) -> None:
    """Have so many tasks run, and wait until the worker sleeps again. The rows are gone before the next ones come."""
    fill(crew.connection, tasks)
    count, _ = crew.ended()
    if count != tasks:
        raise RuntimeError(f"of {tasks} tasks {count} have ended")
    crew.wait_until(lambda: crew.one("SELECT bool_and(idle) FROM fleet.lease WHERE state = 'LIVE'"))
    crew.connection.execute("TRUNCATE fleet.task")
