"""How long a task waits when its worker is killed: from SIGKILL to its start in another process.

No process starts while the time runs. The victims start first and have one slot each, so that each takes one task, which
outlasts the measurement. The survivors start after that and find nothing to do; the first kill comes when they have looked
at every lease several times. A victim that is still alive has no room for a second task, but looks after the others too.
"""

import random
import statistics
import subprocess
import time
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from fleet.bench.result import Goal, Result
from fleet.bench.stage import Crew, Stage, fill

_FOR_EVER_MS = 1e9
_TOLD_APART = """
SELECT lease.pid, task.id
FROM fleet.task
JOIN fleet.lease ON lease.id = task.lease_id
WHERE task.state = 'RUNNING' AND task.attempt = 1
"""
_STEADY = "SELECT count(*) FROM fleet.lease WHERE pid = ANY (%s) AND renewed_at > granted_at + ttl / 2"
_MOMENT = """
SELECT clock_timestamp(), extract(epoch FROM clock_timestamp() - lease.renewed_at)::float8
FROM fleet.task
JOIN fleet.lease ON lease.id = task.lease_id
WHERE task.id = %s AND task.attempt = 1
"""
_ALL_AGAIN = "SELECT count(*) FROM fleet.task WHERE attempt = 2 AND state = 'RUNNING'"
_WAITED = "SELECT extract(epoch FROM started_at - %s)::float8 FROM fleet.task WHERE id = %s"

Kill = dict[str, float]


class Moment(NamedTuple):
    """When a worker was killed, by the database's clock, and how long before that it had renewed its lease."""

    at: datetime
    since_renewal_seconds: float


def measure(stage: Stage, *, kills: int, at_once: int, survivors: int, ttl_seconds: float) -> Result:
    """Kill workers in several batches, each on an empty database, until there were so many."""
    found: list[Kill] = []
    while len(found) < kills:
        victims = min(at_once, kills - len(found))
        found += batch(stage, victims=victims, survivors=survivors, ttl_seconds=ttl_seconds)
        stage.say(f"  {len(found)} of {kills} killed: at most {max(kill['seconds'] for kill in found):.2f} s")
    times = [kill["seconds"] for kill in found]
    bound = ttl_seconds + 2.4 * ttl_seconds / 6
    figures = {
        "median_seconds": statistics.median(times),
        "largest_seconds": max(times),
        "bound_seconds": bound,
        "largest_over_bound": max(times) / bound,
    }
    setup = {"kills": kills, "at_once": at_once, "survivors": survivors, "ttl_seconds": ttl_seconds}
    return Result("recovery", setup, figures, [Goal("largest_seconds", at_most=bound)], found)


def batch(stage: Stage, *, victims: int, survivors: int, ttl_seconds: float) -> list[Kill]:
    """Start victims and then survivors, kill the victims one after another, and return what each of them cost."""
    ttl = f"{ttl_seconds}s"
    with stage.database() as url, stage.workers(url, victims, work_ms=_FOR_EVER_MS, ttl=ttl, slots=1) as doomed:
        fill(doomed.connection, victims)
        doomed.wait_until(lambda: len(held(doomed)) == victims)
        with stage.workers(url, survivors, work_ms=_FOR_EVER_MS, ttl=ttl, slots=max(2, victims)) as staying:
            pids = [process.pid for process in staying.processes]
            staying.wait_until(lambda: staying.one(_STEADY, pids) == survivors)
            return kill_each(doomed, staying, ttl_seconds)


def held(crew: Crew) -> dict[int, UUID]:
    """Return the task that each process is in the middle of."""
    return dict(crew.connection.execute(_TOLD_APART).fetchall())


def kill_each(doomed: Crew, staying: Crew, ttl_seconds: float) -> list[Kill]:
    """Kill within one TTL, at random moments: every phase of heartbeats and of looks at the leases then occurs."""
    tasks = held(doomed)
    moments = sorted(random.uniform(0, ttl_seconds) for _ in doomed.processes)
    killed: list[tuple[UUID, Moment]] = []
    began = time.monotonic()
    for moment, process in zip(moments, doomed.processes, strict=True):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        task = tasks[process.pid]
        killed.append((task, end(doomed, process, task)))
    staying.wait_until(lambda: staying.one(_ALL_AGAIN) == len(killed), 20 * ttl_seconds)
    return [
        {"seconds": staying.one(_WAITED, moment.at, task), "since_renewal_seconds": moment.since_renewal_seconds}
        for task, moment in killed
    ]


def end(crew: Crew, process: "subprocess.Popen[bytes]", task: UUID) -> Moment:
    """Kill a worker in the middle of this task, and return the moment right before."""
    row = crew.connection.execute(_MOMENT, (task,)).fetchone()
    process.kill()
    if row is None:
        raise RuntimeError(f"task {task} was taken from its worker before that was killed")
    return Moment(*row)
