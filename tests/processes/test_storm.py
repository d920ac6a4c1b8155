"""Workers are killed at random and replaced under their names, until all work is done; then every row is judged."""

import asyncio
import os
import random
import signal

import pytest

from fleet.config import Settings
from fleet.postgres.database import AsyncConnection, Database
from tests.processes import program
from tests.processes.crew import Crew, Sink, until, value
from tests.processes.oracle import judge_all
from tests.support import TTL

TASKS = int(os.environ.get("FLEET_TEST_STORM_TASKS", "2000"))
SEED = int(os.environ.get("FLEET_TEST_STORM_SEED", "7"))
WORKERS = 8
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING')"
UNCLEARED = "SELECT count(*) FROM fleet.lease WHERE state IN ('REAPED', 'RELEASED') AND cleared_at IS NULL"


@pytest.mark.timeout(120 + TASKS / 10)
async def test_random_kills_and_replacements_lose_nothing_and_repeat_nothing(
    crew: Crew, database_url: str, watcher: AsyncConnection, sink: Sink
) -> None:
    chance = random.Random(SEED)
    settings = Settings(ttl=TTL)
    program.app.use(Database(database_url, settings), settings)
    async with program.app:
        for handler in (program.quick, program.quick_once):
            arguments = [{"milliseconds": chance.randint(20, 250)} for _ in range(TASKS // 2)]
            await program.app.submit_many(handler, arguments)

    living = await crew.workers(WORKERS, slots=4, ttl="3s")
    killed: set[int] = set()
    while await value(watcher, OPEN) > TASKS // 10:
        place = chance.randrange(WORKERS)
        living[place].kill()
        killed.add(living[place].pid)
        living[place] = crew.start(name=living[place].name, slots=4, ttl="3s")
        await asyncio.sleep(chance.uniform(0.2, 0.8))  # the rhythm of the fault itself
    await until(watcher, OPEN, is_=lambda count: count == 0, seconds=60)
    await until(watcher, UNCLEARED, is_=lambda count: count == 0)
    for worker in living:
        await crew.lease_of(worker)
        worker.send(signal.SIGTERM)
    assert [await worker.ended() for worker in living] == [0] * WORKERS

    told = await judge_all(watcher, sink)
    assert len(told) == TASKS
    for story in told:
        task = story.task
        if task["name"] == "quick_once":
            assert (task["state"], task["failure_code"]) in (("SUCCEEDED", None), ("FAILED", "lease_expired")), story
        else:
            spent = task["losses"] == task["max_losses"]
            expected = ("FAILED", "crash_budget_exhausted") if spent else ("SUCCEEDED", None)
            assert (task["state"], task["failure_code"]) == expected, story
        assert task["failures"] == 0, story
        assert task["state"] == "FAILED" or task["attempt"] in story.effects, story
        assert not story.late, story  # the dead report nothing
    reaped = await value(watcher, "SELECT coalesce(array_agg(pid), '{}') FROM fleet.lease WHERE state = 'REAPED'")
    assert set(reaped) <= killed, "a lease was taken from a process that was alive"
    lost = sum(story.task["losses"] for story in told)
    assert lost > 0, "the storm has missed"
    print(f"{len(killed)} workers killed, {lost} attempts lost")
