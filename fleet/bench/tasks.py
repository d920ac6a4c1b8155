"""The tasks that are measured. A handler works for as long as FLEET_BENCH_WORK_MS says: it sleeps."""

import asyncio
import os
import time

from fleet import Fleet

WORK_SECONDS = float(os.environ.get("FLEET_BENCH_WORK_MS", "1")) / 1000
PAD = "x" * 200  # the arguments of a task take about 200 bytes

app = Fleet()


@app.task(idempotent=True)
async def work(i: int, pad: str) -> None:
    """Wait without taking processor time, as for an answer from elsewhere."""
    if WORK_SECONDS:
        await asyncio.sleep(WORK_SECONDS)


@app.task(idempotent=True)
def work_in_thread(i: int, pad: str) -> None:
    """Do the same in a thread."""
    if WORK_SECONDS:
        time.sleep(WORK_SECONDS)
