"""Idle workers, many in one process: each has a lease, a heartbeat thread, a listener and connections of its own.

For the server they are what as many worker processes would be; only the interpreters are spared.
Orders: url, workers, seconds.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import psycopg
import uvloop

from fleet.bench.stage import Connection, server_cpu_seconds
from fleet.bench.tasks import app
from fleet.config import Settings
from fleet.postgres.database import Database

_PATIENCE_SECONDS = 120
_POLL_SECONDS = 0.1
_SETTLED = "SELECT count(*) FROM fleet.lease WHERE idle AND renewed_at > granted_at + 2 * %s::interval"
_WORK = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'fleet ')"


async def measure(url: str, workers: int, seconds: float) -> dict[str, float]:
    """Return what the workers cost while nothing comes in."""
    settings = Settings()
    app.use(Database(url, settings), settings)
    with psycopg.connect(url, autocommit=True) as connection:
        async with AsyncExitStack() as stack:
            crew = [await stack.enter_async_context(app.worker(name=f"idle-{number}")) for number in range(workers)]
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while _one(connection, _SETTLED, settings.renew_every) < workers:
                if time.monotonic() > deadline:
                    raise RuntimeError("not every worker went to sleep, although there was nothing to do")
                await asyncio.sleep(_POLL_SECONDS)
            figures = await _watch(connection, seconds)
            for worker in crew:  # all at once: the stack waits for one after the other
                worker.drain("the measurement is over")
    return figures


async def _watch(connection: Connection, seconds: float) -> dict[str, float]:
    """Let the time pass. What server and workers used is given as a percentage of one core."""
    ours = psutil.Process()
    server, workers, work = _server_cpu_seconds(connection), sum(ours.cpu_times()[:2]), _one(connection, _WORK)
    began = time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - began
    return {
        "server_cpu_percent_of_one_core": (_server_cpu_seconds(connection) - server) / passed * 100,
        "workers_cpu_percent_of_one_core": (sum(ours.cpu_times()[:2]) - workers) / passed * 100,
        "transactions_per_second": (_one(connection, _WORK) - work) / passed,
        "connections": _one(connection, _CONNECTIONS),
    }


def _server_cpu_seconds(connection: Connection) -> float:
    """Return the same as the stage does, but exactly.

    Each of these many processes works for less than the 10 ms in which Linux usually counts. Elsewhere that must do.
    """
    postmaster = psutil.Process(_one(connection, "SELECT pg_backend_pid()")).parent()
    if postmaster is None or not Path(f"/proc/{postmaster.pid}/schedstat").exists():
        return server_cpu_seconds(connection)
    ended = postmaster.cpu_times()
    alive = sum(map(_cpu_nanoseconds, [postmaster, *postmaster.children()])) / 1e9
    return alive + ended.children_user + ended.children_system


def _cpu_nanoseconds(process: psutil.Process) -> int:
    try:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii").split()[0])
    except OSError:  # it has just ended
        return 0


def _one(connection: Connection, question: str, *values: object) -> int:
    row = connection.execute(question, values).fetchone()
    return int(row[0]) if row else 0


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    print(json.dumps(uvloop.run(measure(orders["url"], orders["workers"], orders["seconds"]))))
