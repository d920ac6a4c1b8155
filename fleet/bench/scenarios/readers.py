"""Whether a worker gets slower while reports overlap each other, so that some old snapshot is held at every moment."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import Event

import psycopg

from fleet.bench.result import Figures, Result, alternate, medians
from fleet.bench.rounds import begin_repeatable, warm_up, work_off
from fleet.bench.stage import Stage

ROUNDS = 5
_REPORT = "SELECT state, count(*) FROM fleet.task GROUP BY state"


def measure(stage: Stage, *, readers: int, read_seconds: float, tasks: int, rounds: int) -> Result:
    """Let one worker process work off five backlogs, with the readers and without them in turn."""

    def side(sessions: int) -> Figures:
        with stage.database() as url, stage.workers(url, slots=256) as crew:
            warm_up(crew)
            with overlapping(url, sessions, read_seconds) if sessions else nullcontext():
                rates = [work_off(crew, tasks) for _ in range(ROUNDS)]
            return {"first_tasks_per_second": rates[0], "last_tasks_per_second": rates[-1]}

    found = alternate({"with readers": lambda: side(readers), "alone": lambda: side(0)}, rounds, stage.say)
    read, alone = medians(found["with readers"]), medians(found["alone"])
    figures = {
        "with_readers_first_tasks_per_second": read["first_tasks_per_second"],
        "with_readers_last_tasks_per_second": read["last_tasks_per_second"],
        "with_readers_ratio_last_to_first": read["last_tasks_per_second"] / read["first_tasks_per_second"],
        "alone_first_tasks_per_second": alone["first_tasks_per_second"],
        "alone_last_tasks_per_second": alone["last_tasks_per_second"],
        "alone_ratio_last_to_first": alone["last_tasks_per_second"] / alone["first_tasks_per_second"],
        "ratio_last_with_readers_to_alone": read["last_tasks_per_second"] / alone["last_tasks_per_second"],
    }
    setup = {"readers": readers, "read_seconds": read_seconds, "slots": 256, "work_ms": 1, "tasks": tasks}
    every = [
        {f"{name}_{figure}": value for name, each in pair.items() for figure, value in each.items()}
        for pair in (
            {"with_readers": r, "alone": a} for r, a in zip(found["with readers"], found["alone"], strict=True)
        )
    ]
    return Result("readers", setup, figures, rounds=every)


@contextmanager
def overlapping(url: str, readers: int, seconds: float) -> Iterator[None]:
    """Let sessions report again and again, each holding its snapshot for so long, each a share of that after the last."""
    over = Event()
    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(_read, url, over, seconds, seconds * number / readers) for number in range(readers)]
        try:
            yield
        finally:
            over.set()
        for each in reading:
            each.result()


def _read(url: str, over: Event, seconds: float, delay: float) -> None:
    """Begin after the delay; then report, keep the snapshot, report again from it, and begin anew."""
    with psycopg.connect(url) as connection:
        begin_repeatable(connection)
        over.wait(delay)
        while not over.is_set():
            then = connection.execute(_REPORT).fetchall()
            over.wait(seconds)
            if sorted(connection.execute(_REPORT).fetchall()) != sorted(then):
                raise RuntimeError("a reader has seen what was committed after its snapshot")
            connection.commit()
