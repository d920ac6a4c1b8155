"""What the harness reads: a description of this adapter, then its metrics again and again."""

import asyncio
import itertools
import json
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fleet import __version__
from fleet.client import Client
from fleet.postgres.database import Statement

from .gauges import WINDOW_SECONDS, Gauges
from .orders import Orders
from .outage import persist

MANIFEST: dict[str, Any] = json.loads(Path(__file__).with_name("adapter.json").read_text(encoding="utf-8"))
COUNT_SHARE = 20  # counting takes at most one part in so many of the time
COUNTS_FROM_THE_HEAD = 30  # one count in so many begins at the head

# Not from the head of the index: what has been claimed lies there, for as long as somebody holds a snapshot. A task that
# was handed back to its old place, before the oldest one of the count before, is seen by the next count from the head.
DEPTH = Statement("""
SELECT count(*), coalesce(min(run_at), statement_timestamp()) - interval '2 seconds'
FROM fleet.task
WHERE queue = :queue AND priority = :priority::smallint AND state = 'QUEUED'
  AND run_at >= :since::timestamptz AND run_at <= statement_timestamp()
""")


def describe(orders: Orders, revision: str) -> None:
    """Print the first line; `revision` is that of the schema."""
    name = urlsplit(orders.database_url).path.removeprefix("/")
    tables = {key: MANIFEST[key] for key in ("event_tables", "event_indexes", "extensions")}
    versions = {"version": __version__, "schema_version": revision}
    _print(orders, {"kind": "descriptor", **tables, **versions, "db_name": name, "started_at": _now()})


async def sample(orders: Orders, gauges: Gauges) -> None:
    """Print the metrics whenever the wall clock is at a multiple of the period, for ever."""
    period, boundary = orders.sample_seconds, 0.0
    before, enqueued, completed = time.monotonic(), gauges.enqueued, gauges.completed
    while True:
        boundary = max(boundary, time.time() // period * period) + period
        await asyncio.sleep(boundary - time.time())
        now = time.monotonic()
        metrics = [
            *_latencies(gauges),
            ("enqueue_rate", (gauges.enqueued - enqueued) / (now - before), period),
            ("completion_rate", (gauges.completed - completed) / (now - before), period),
        ]
        if orders.instance == 0:  # one of several tells it for all
            metrics.append(("queue_depth", gauges.depth, 0))
        before, enqueued, completed = now, gauges.enqueued, gauges.completed
        common = {"kind": "adapter", "t": _now(), "subject_kind": "adapter", "subject": ""}
        _print(orders, *[common | {"metric": name, "value": value, "window_s": over} for name, value, over in metrics])


async def watch_depth(client: Client, queue: str, priority: int, gauges: Gauges) -> None:
    """Count the waiting tasks, for ever: once a second, or more seldom where it takes long."""
    oldest: datetime | str = "-infinity"

    async def count(since: datetime | str) -> float:
        nonlocal oldest
        sent, enqueued, started = time.monotonic(), gauges.enqueued, gauges.started
        ((depth, oldest),) = await client.query(DEPTH, queue=queue, priority=priority, since=since)
        gauges.counted(depth, enqueued=enqueued, started=started)
        return time.monotonic() - sent

    for number in itertools.count():
        seconds = await persist(partial(count, oldest if number % COUNTS_FROM_THE_HEAD else "-infinity"))
        await asyncio.sleep(max(1.0, COUNT_SHARE * seconds))


def _latencies(gauges: Gauges) -> list[tuple[str, float, float]]:
    """Return the percentiles; none where nothing has started: a zero would pass for a very good one."""
    found = gauges.latencies.percentiles(0.5, 0.95, 0.99)
    names = ("claim_p50_ms", "claim_p95_ms", "claim_p99_ms")
    return [(name, value, WINDOW_SECONDS) for name, value in zip(names, found, strict=False)]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _print(orders: Orders, *records: dict[str, Any]) -> None:
    common = {"system": MANIFEST["system"], "instance_id": orders.instance}
    sys.stdout.write("".join(json.dumps(common | record) + "\n" for record in records))
    sys.stdout.flush()
