"""The floor of a pick-up: a row written and announced in one statement, until another connection has heard of it.

Nothing is claimed, checked or run. Orders: url, tasks, every_ms.
"""

import asyncio
import json
import sys
import time

import psycopg
import uvloop

from fleet.bench.latency import spread
from fleet.bench.sides.ceiling import SCHEMA
from fleet.bench.tasks import PAD

PING = """
WITH written AS (
  INSERT INTO ceiling.task (name, args)
  VALUES ('work', jsonb_build_object('i', %(i)s::int, 'pad', %(pad)s::text))
  RETURNING id
)
SELECT pg_notify('ceiling', %(i)s::int::text)
FROM written
"""
_PATIENCE_SECONDS = 30


async def ping(*, url: str, tasks: int, every_ms: float) -> dict[str, float]:
    """Write a row now and then; return how long the other connection took to hear of it."""
    sent: list[float] = []
    waited: list[float] = []
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as writing,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as listening,
    ):
        await writing.execute(SCHEMA)
        await listening.execute("LISTEN ceiling")

        async def hear() -> None:
            heard = listening.notifies(stop_after=tasks)
            waited.extend([time.perf_counter() - sent[int(notification.payload)] async for notification in heard])

        hearing = asyncio.create_task(hear())
        for i in range(tasks):
            sent.append(time.perf_counter())
            await writing.execute(PING, {"i": i, "pad": PAD}, prepare=True)
            await asyncio.sleep(every_ms / 1000)
        await asyncio.wait_for(hearing, _PATIENCE_SECONDS)
    return spread(waited)


if __name__ == "__main__":
    print(json.dumps(uvloop.run(ping(**json.loads(sys.argv[1])))))
