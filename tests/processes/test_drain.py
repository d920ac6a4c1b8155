"""Workers come and go under load: nothing is lost, nothing is charged, and nobody waits for ever."""

import os
import signal

import pytest

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.load import load
from tests.processes.oracle import judge_all
from tests.processes.stage import Stage
from tests.support import counters, history, row, submit

RESTARTS = int(os.environ.get("FLEET_TEST_RESTARTS", "6"))  # 30 for the whole number
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING')"
STATE = "SELECT state FROM fleet.lease WHERE id = %s"


@pytest.mark.fault("Deploy", "SIGTERM under load")
async def test_sigterm_of_every_worker_in_turn_under_load_loses_and_charges_nothing(
    crew: Crew, database_url: str, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(3, slots=4)
    async with load(database_url, milliseconds=50) as submitted:
        await submitted.more(50)
        for worker in workers:
            await crew.worker(name=worker.name, slots=4)
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
            await submitted.more(50)
    await until(watcher, OPEN, is_=lambda count: count == 0)
    told = await judge_all(watcher, sink)
    assert {story.task["id"] for story in told} >= set(submitted.accepted)
    for story in told:
        assert story.task["state"] == "SUCCEEDED", story
        assert (story.task["losses"], story.task["failures"], len(story.starts)) == (0, 0, 1), story
        assert set(story.ended.values()) <= {"released"}, story
    left = "SELECT array_agg(DISTINCT state) FROM fleet.lease WHERE pid = ANY (%s)"
    assert await value(watcher, left, [worker.pid for worker in workers]) == ["RELEASED"]


@pytest.mark.fault("Deploy", "SIGTERM twice")
async def test_a_drain_waits_for_handlers_and_a_second_signal_waits_no_longer(
    crew: Crew, stage: Stage, watcher: AsyncConnection
) -> None:
    worker = await crew.worker(slots=3, drain_timeout="60s")
    lease = await crew.lease_of(worker)
    repeatable, once, quick = [await submit(watcher, name=name) for name in ("act", "act_once", "act_once")]
    actors = [await stage.arrival(task) for task in (repeatable, once, quick)]
    worker.send(signal.SIGTERM)
    await until(watcher, STATE, lease, is_=lambda state: state == "DRAINING")
    waiting = await submit(watcher, name="quick")
    actors[2].tell('return "in time"')
    assert await terminal(watcher, quick) == "SUCCEEDED"
    drained = await value(watcher, "SELECT renewed_at FROM fleet.lease WHERE id = %s", lease)
    await until(watcher, "SELECT renewed_at > %s FROM fleet.lease WHERE id = %s", drained, lease)  # it lives on

    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    found = await row(watcher, repeatable)
    assert (found["state"], found["attempt"], found["losses"], found["failures"]) == ("QUEUED", 1, 0, 0)
    assert await history(watcher, repeatable) == [(1, False, "released")]
    assert (await row(watcher, once))["failure_code"] == "interrupted"
    assert (await row(watcher, waiting))["attempt"] == 0
    assert await value(watcher, STATE, lease) == "RELEASED"
    assert await counters(watcher) == {("dead_letters", "default", "interrupted"): 1}


async def test_a_signal_that_comes_with_the_lease_drains(crew: Crew, watcher: AsyncConnection) -> None:
    workers = [crew.start(slots=1) for _ in range(4)]
    for worker in workers:
        await crew.lease_of(worker)
        worker.send(signal.SIGTERM)
    for worker in workers:
        assert await worker.ended() == 0
    assert await value(watcher, "SELECT array_agg(DISTINCT state) FROM fleet.lease") == ["RELEASED"]


@pytest.mark.fault("Deploy", "workers with different TTLs together")
async def test_workers_with_different_ttls_judge_each_by_its_own(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    hasty = await crew.worker(slots=1, ttl="2s")
    of_hasty = await submit(watcher, name="act_once", max_attempts=1)
    await stage.arrival(of_hasty)
    calm = await crew.worker(slots=1, ttl="8s")
    lease = await crew.lease_of(calm)
    of_calm = await submit(watcher, name="act_once", max_attempts=1)
    actor = await stage.arrival(of_calm)
    assert actor.pid == calm.pid

    calm.stop()  # for longer than the others' TTL, and for less than its own
    stopped = await value(watcher, "SELECT renewed_at FROM fleet.lease WHERE id = %s", lease)
    await until(watcher, "SELECT clock_timestamp() > %s + interval '3 s'", stopped)
    calm.send(signal.SIGCONT)
    await until(watcher, "SELECT renewed_at > %s FROM fleet.lease WHERE id = %s", stopped, lease)
    assert await value(watcher, STATE, lease) == "LIVE"
    assert await counters(watcher) == {}

    killed_at = await value(watcher, "SELECT clock_timestamp()")
    hasty.kill()
    assert await terminal(watcher, of_hasty) == "FAILED"
    took = "SELECT extract(epoch FROM finished_at - %s)::float8 FROM fleet.task WHERE id = %s"
    assert await value(watcher, took, killed_at, of_hasty) < 8.0  # by its own TTL of 2 s, not its judge's of 8 s
    actor.tell("return 1")
    assert await terminal(watcher, of_calm) == "SUCCEEDED"
    assert sink.attempts("start", of_hasty) == [1]


@pytest.mark.timeout(60 + 6 * RESTARTS)
async def test_killed_and_restarted_under_the_same_name_again_and_again_each_start_is_another_worker(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    tasks = []
    for number in range(RESTARTS):
        worker = await crew.worker(name="phoenix", slots=1)
        task = await submit(watcher, name="act_once", priority=0)
        actor = await stage.arrival(task)
        assert actor.pid == worker.pid
        if number < RESTARTS - 1:
            worker.kill()
        tasks.append(task)
    for task in tasks[:-1]:
        assert await terminal(watcher, task) == "FAILED"
        assert (await row(watcher, task))["failure_code"] == "lease_expired"
    actor.tell("return 1")  # the last one lives, under the name that so many dead had
    assert await terminal(watcher, tasks[-1]) == "SUCCEEDED"
    await judge_all(watcher, sink)
    leases = "SELECT count(*), count(*) FILTER (WHERE state = 'REAPED') FROM fleet.lease WHERE worker = 'phoenix'"
    found = await (await watcher.execute(leases)).fetchone()
    assert found == (RESTARTS, RESTARTS - 1)
