"""A load that a worker can bear: tasks that come in at a steady rate, from a process of their own."""

from datetime import timedelta

from fleet.bench.latency import pick_up
from fleet.bench.scenarios.drain import drain
from fleet.bench.stage import Crew, Stage

WARM_UP = timedelta(seconds=2)
_BATCH_MS = 25.0  # a service gathers what comes in for so long,
_BATCH_MAX = 128  # or until it is so much, and submits it at once
_DRAINED = 20_000


def half_capacity(stage: Stage, *, slots: int, work_ms: float) -> float:
    """Return half the tasks per second at which one worker works off a short backlog here and now."""
    with stage.database() as url:
        figures = drain(stage, url, processes=1, slots=slots, work_ms=work_ms, tasks=_DRAINED, name="work")
    rate = figures["tasks_per_second"] / 2
    stage.say(f"  half of what a short drain reached: {rate:,.0f} tasks per second are offered")
    return rate


def produce(stage: Stage, url: str, rate: float, seconds: float) -> dict[str, float]:
    """Have a producer submit at this rate for so long; return `tasks` and `offered_tasks_per_second`."""
    return stage.play(
        "fleet.bench.sides.offer", url=url, rate=rate, seconds=seconds, batch_ms=_BATCH_MS, batch_max=_BATCH_MAX
    )


def offer(stage: Stage, url: str, crew: Crew, rate: float, seconds: float) -> dict[str, float]:
    """Have a producer submit at this rate, wait until all is done, and say how long tasks waited after the warm-up.

    Returns `tasks`, `offered_tasks_per_second` and the pick-up's `p50_milliseconds`, `p99_…`, `max_…`.
    """
    since = crew.one("SELECT clock_timestamp()")
    total_seconds = WARM_UP.total_seconds() + seconds
    sent = produce(stage, url, rate, total_seconds)
    crew.drained()
    return sent | pick_up(crew.connection, since, WARM_UP)
