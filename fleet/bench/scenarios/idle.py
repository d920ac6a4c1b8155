"""What a fleet without work costs its server: leases, heartbeats, listeners and looks at the others, all by default."""

from fleet.bench.result import Goal, Result
from fleet.bench.stage import Stage

_USUAL_WORKERS = 100


def measure(stage: Stage, *, workers: int, seconds: float) -> Result:
    """Watch the server for so long once every worker has gone to sleep."""
    with stage.database() as url:
        figures = stage.play("fleet.bench.sides.idle", url=url, workers=workers, seconds=seconds)
    goals = [Goal("server_cpu_percent_of_one_core", at_most=3)] if workers >= _USUAL_WORKERS else []
    return Result("idle", {"workers": workers, "seconds": seconds}, figures, goals)
