"""The example application: one task that may be done twice and one that must not.

Run a worker for it with `fleet worker run fleet.demo:app`.
"""

import asyncio
import os
import random
import time

from fleet.app import Fleet
from fleet.context import Context
from fleet.demo import outbox
from fleet.demo.analysis import Analysis
from fleet.demo.analysis import analyze as analysis_of

PACE = "FLEET_DEMO_PACE"
SPREAD = 0.25  # a pause is up to a quarter longer or shorter than the pace, so that tasks do not end in step

app = Fleet()


@app.task(idempotent=True)
def analyze(text: str, title: str = "") -> Analysis:
    """Analyze a text. Pure computation: doing it twice is harmless. The title is for whoever looks at the task."""
    time.sleep(_pause_seconds())
    return analysis_of(text)


@app.task
async def publish(ctx: Context, title: str, text: str) -> Analysis:
    """Analyze a text and publish the figures. Stands for a call that costs money: it must not be done twice."""
    pause = _pause_seconds() / 3
    await asyncio.sleep(pause)
    figures = analysis_of(text)
    outbox.append({"task": str(ctx.task_id), "title": title, **figures})
    await asyncio.sleep(2 * pause)
    return figures


def _pause_seconds() -> float:
    """Return how long this task takes beside its work, so that somebody can kill its worker meanwhile."""
    return float(os.environ.get(PACE, "0")) * random.uniform(1 - SPREAD, 1 + SPREAD)
