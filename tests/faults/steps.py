"""What the tests of faults share: two tasks, handlers that play by themselves, and how long recovery took."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import until, value
from tests.processes.stage import Actor
from tests.support import TTL, submit

TTL_SECONDS = TTL.total_seconds()
CALM = timedelta(seconds=3)  # the TTL where nobody may lose a lease, on a machine that runs other things beside
SLACK_SECONDS = 4.0  # of a machine that runs other things beside; what was measured is published without it
RESUME_SECONDS = 10.0  # L5
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING')"
STATE = "SELECT state FROM fleet.lease WHERE id = %s"
LEASES = "SELECT array_agg(id ORDER BY id) FROM fleet.lease WHERE state = 'LIVE'"
LIVE = "SELECT count(*) FROM fleet.lease WHERE state = 'LIVE'"
REAPED = "SELECT count(*) FROM fleet.lease WHERE state = 'REAPED'"
NOW = "SELECT clock_timestamp()"


def bound(ttl: float = TTL_SECONDS) -> float:
    """L2: the seconds from a death to the settlement of what the dead one held."""
    return ttl + 2.4 * ttl / 6


async def submit_both(watcher: AsyncConnection, **options: Any) -> tuple[UUID, UUID]:
    """One task that may be repeated and one that may not; both appear at once, so that one claim takes both."""
    async with watcher.transaction():
        repeatable = await submit(watcher, name="act", **options)
        once = await submit(watcher, name="act_once", **options)
    return repeatable, once


def play(actor: Actor) -> None:
    """Have the handler do its one effect and return."""
    actor.tell("effect")
    actor.tell("return 1")


def except_of(pid: int) -> Callable[[Actor], None]:
    """Have every handler play at once, but those of one process, which wait for orders."""
    return lambda actor: play(actor) if actor.pid != pid else None


def keep_recovery(fault: str, seconds: float, ttl: float = TTL_SECONDS) -> None:
    """Append a measured recovery to the file that is to be published, where one is named."""
    path = os.environ.get("FLEET_RECOVERY_TIMES")
    if path:
        line = json.dumps({"fault": fault, "seconds": round(seconds, 3), "ttl": ttl}) + "\n"
        with Path(path).open("a", encoding="ascii") as file:
            file.write(line)


async def recovered(
    watcher: AsyncConnection, fault: str, tasks: list[UUID], killed_at: object, ttl: float = TTL_SECONDS
) -> None:
    """Wait until the loss of each of these tasks is settled, in time; keep how long it took, by the database's clock."""
    settled = "SELECT extract(epoch FROM at - %s)::float8 FROM fleet.attempt WHERE task_id = %s AND outcome = 'lost'"
    for task in tasks:
        await until(watcher, "SELECT count(*) FROM fleet.attempt WHERE task_id = %s AND outcome = 'lost'", task)
        seconds = await value(watcher, settled, killed_at, task)
        keep_recovery(fault, seconds, ttl)
        assert seconds < bound(ttl) + SLACK_SECONDS
