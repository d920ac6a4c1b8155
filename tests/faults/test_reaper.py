"""Many die at once and many reap at once, and reapers themselves die or stand still between two of their statements."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.lease import Lease
from fleet.postgres import cancel, claim, reap, settle
from fleet.postgres.database import AsyncConnection, Database
from fleet.task import ClaimedTask, Settlement, State, Succeeded
from fleet.testing.faultpoints import FaultPoints
from tests.faults.steps import NOW, SLACK_SECONDS, bound, play, recovered, submit_both
from tests.postgres.steps import MINUTE, lanes_of, sweeper
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.oracle import judge_all
from tests.processes.stage import Stage
from tests.support import claim_some, counters, expire_lease, history, new_lease, renew, row, submit

DEAD = 500
REPEATS = 500
MANY = 10_000
RUNNING = "SELECT count(*) FROM fleet.task WHERE state = 'RUNNING'"
UNCLEARED = "SELECT count(*) FROM fleet.lease WHERE state = 'REAPED' AND cleared_at IS NULL"
LOST = "SELECT count(*) FROM fleet.attempt WHERE outcome = 'lost' AND NOT late"

T = TypeVar("T")
Rival = Callable[[AsyncConnection, Lease, ClaimedTask], Coroutine[Any, Any, bool]]


async def leave_dead(connection: AsyncConnection, count: int) -> None:
    """Tasks of a worker that has vanished, in a queue of their own: every other one may be repeated."""
    async with connection.transaction():
        for _ in range(count // 2):
            for name in ("quick", "quick_once"):
                await submit(connection, name=name, queue="elsewhere")
    lease = await new_lease(connection, worker="vanished", queues=["elsewhere"])
    for name in ("quick", "quick_once"):
        await claim_some(connection, lease, count, name=name, queue="elsewhere", idempotent=name == "quick")
    await expire_lease(connection, lease)


async def settled_once(watcher: AsyncConnection, count: int) -> None:
    """Of these tasks of one vanished worker, half were put back and half FAILED; each was counted and written once."""
    await until(watcher, RUNNING, is_=lambda running: running == 0)
    await until(watcher, UNCLEARED, is_=lambda leases: leases == 0)
    counted = await counters(watcher)
    assert counted["reclaims", "elsewhere", ""] == count // 2
    assert counted["dead_letters", "elsewhere", "lease_expired"] == count // 2
    states = "SELECT state, losses, attempt, count(*)::int FROM fleet.task GROUP BY 1, 2, 3 ORDER BY 1"
    found = await (await watcher.execute(states)).fetchall()
    assert found == [("FAILED", 1, 1, count // 2), ("QUEUED", 1, 1, count // 2)]
    assert await value(watcher, LOST) == count


@pytest.mark.fault("Reaper", "ten reapers at once over 500 dead tasks")
async def test_ten_reapers_at_once_over_five_hundred_dead_tasks_settle_each_once(
    crew: Crew, watcher: AsyncConnection
) -> None:
    with FaultPoints("mark.before") as points:
        await crew.workers(10, faultpoints=points.environment["FLEET_FAULTPOINTS"])
        await leave_dead(watcher, DEAD)
        hits = [await points.hit("mark.before") for _ in range(10)]
        assert len({hit.pid for hit in hits}) == 10  # each of them is about to accuse the same dead worker
        assert await value(watcher, RUNNING) == DEAD
        points.release_all()
    await settled_once(watcher, DEAD)
    assert (await counters(watcher))["lease_expirations", "", ""] == 1


@pytest.mark.parametrize("point", ["mark.before", "mark.after", "sweep.before", "sweep.after"])
@pytest.mark.parametrize(
    "fate",
    [
        pytest.param("killed", marks=pytest.mark.fault("Reaper", "a reaper is killed in the middle of a sweep")),
        pytest.param("stopped", marks=pytest.mark.fault("Reaper", "a reaper is stopped in the middle of a sweep")),
    ],
)
async def test_a_reaper_that_ends_or_stands_still_between_two_statements_leaves_nothing_behind_and_repeats_nothing(
    crew: Crew, watcher: AsyncConnection, point: str, fate: str
) -> None:
    await leave_dead(watcher, 40)
    with FaultPoints(point) as points:
        reaper = crew.start(faultpoints=points.environment["FLEET_FAULTPOINTS"])
        hit = await points.hit(point)
        lease = await crew.lease_of(reaper)
        done = await value(watcher, LOST)
        assert (hit.pid, done) == (reaper.pid, 40 if point == "sweep.after" else 0)
        if fate == "killed":
            hit.die()
            assert await reaper.ended() == -signal.SIGKILL
        else:
            reaper.stop()
        await crew.workers(2)
        await settled_once(watcher, 40)
        # The reaper itself is reaped by the others, like anybody.
        await until(watcher, "SELECT state = 'REAPED' FROM fleet.lease WHERE id = %s", lease)
        if fate == "stopped":
            points.release_all()
            reaper.send(signal.SIGCONT)
            await crew.lease_of(reaper, but=lease)
            task = await submit(watcher, name="quick")
            assert await terminal(watcher, task) == "SUCCEEDED"
            await watcher.execute("DELETE FROM fleet.task WHERE id = %s", (task,))
    await settled_once(watcher, 40)
    assert (await counters(watcher))["lease_expirations", "", ""] == 2  # the vanished one, and the reaper


async def complete(connection: AsyncConnection, lease: Lease, task: ClaimedTask) -> bool:
    answers = await settle.succeed(connection, lease, [Settlement(task, Succeeded("1"))])
    return not answers  # only what was not settled is answered


async def renew_it(connection: AsyncConnection, lease: Lease, task: ClaimedTask) -> bool:
    return bool(await renew(connection, lease))


async def claim_another(connection: AsyncConnection, lease: Lease, task: ClaimedTask) -> bool:
    claimed = await claim.claim(connection, lease, lanes_of(task.queue), {"work": True}, 10)
    return bool(claimed and claimed.tasks)


async def ask_to_cancel(connection: AsyncConnection, lease: Lease, task: ClaimedTask) -> bool:
    return (await cancel.cancel(connection, [task.id], "test"))[task.id] == (State.RUNNING, True)


async def reap_it(connection: AsyncConnection, lease: Lease, *, expire: bool = False) -> None:
    if expire:
        await expire_lease(connection, lease)
    await reap.mark(connection, uuid7(), [lease.id])
    await reap.sweep(connection, sweeper(), [lease.id])


async def after(seconds: float, action: Awaitable[T]) -> T:
    await asyncio.sleep(seconds)  # the rhythm of the race itself: now the one is first, now the other
    return await action


async def judge_race(connection: AsyncConnection, rival: Rival, lease: Lease, task: UUID, *, won: bool) -> None:
    """Fail unless one of the two has won, whole. `won`: the rival was told that it was first."""
    found = await row(connection, task)
    lost = [outcome for _, late, outcome in await history(connection, task) if outcome == "lost" and not late]
    state = await value(connection, "SELECT state FROM fleet.lease WHERE id = %s", lease.id)
    assert len(lost) == found["losses"]
    ends: dict[Rival, tuple[str, int, str]] = {
        complete: ("SUCCEEDED", 0, "REAPED") if won else ("QUEUED", 1, "REAPED"),
        renew_it: ("RUNNING", 0, "LIVE") if won else ("QUEUED", 1, "REAPED"),
        claim_another: ("QUEUED", 1, "REAPED"),
        ask_to_cancel: ("CANCELLED", 1, "REAPED"),
    }
    assert (found["state"], found["losses"], state) == ends[rival]
    others = "SELECT state, attempt, losses FROM fleet.task WHERE id <> %s"
    swept = int(rival is claim_another and won)  # what it still got is swept with the rest
    assert await (await connection.execute(others, (task,))).fetchall() == [("QUEUED", swept, swept)]


@pytest.mark.parametrize(
    "rival",
    [
        pytest.param(complete, marks=pytest.mark.fault("Reaper", "a reap against a completion")),
        pytest.param(renew_it, marks=pytest.mark.fault("Reaper", "a reap against a renewal")),
        pytest.param(claim_another, marks=pytest.mark.fault("Reaper", "a reap against a claim")),
        pytest.param(ask_to_cancel, marks=pytest.mark.fault("Reaper", "a reap against a cancel")),
    ],
)
async def test_five_hundred_times_the_reaper_or_its_rival_is_first_and_never_both(
    database_url: str, rival: Rival
) -> None:
    chance = random.Random(11)
    database = Database(database_url, Settings(ttl=MINUTE))
    wins = 0
    async with await database.connect("reaper") as one, await database.connect("rival") as two:
        for connection in (one, two):
            await connection.execute("SET synchronous_commit = off")  # nothing crashes here, and it is much quicker
        for _ in range(REPEATS):
            lease = await new_lease(one, ttl=MINUTE)
            task_id = await submit(one)
            (task,) = await claim_some(one, lease, 1)
            await submit(one)
            if rival is not claim_another:  # which a lease that has expired cannot even try
                await expire_lease(one, lease)
            pause = chance.uniform(-0.003, 0.003)
            reaping = after(max(0.0, -pause), reap_it(one, lease, expire=rival is claim_another))
            _, won = await asyncio.gather(reaping, after(max(0.0, pause), rival(two, lease, task)))
            await reap_it(one, lease)  # what was locked is left for the next sweep
            await judge_race(one, rival, lease, task_id, won=won)
            wins += won
            for table in ("task", "attempt", "lease", "cancel_request"):
                await one.execute(f"DELETE FROM fleet.{table}")
    assert 0 < wins < REPEATS, "one of the two was always first"
    print(f"{rival.__name__} was first in {wins} of {REPEATS}")


async def insert_many(connection: AsyncConnection, count: int, name: str, lease: Lease | None) -> None:
    """Write so many tasks at once, RUNNING under this lease or else QUEUED, in the queue `default`, due since long."""
    await connection.execute(
        """
        INSERT INTO fleet.task (id, queue, name, state, attempt, lease_id, repeatable, started_at, run_at,
                                max_attempts, max_losses)
        SELECT lpad(to_hex(number), 32, '0')::uuid, 'default', %(name)s, %(state)s, %(attempt)s, %(lease)s,
               %(lease)s::uuid IS NOT NULL, clock_timestamp(), clock_timestamp() - interval '1 hour', 5, 3
        FROM generate_series(1, %(count)s) AS number
        """,
        {
            "name": name, "state": "RUNNING" if lease else "QUEUED", "attempt": 1 if lease else 0,
            "lease": lease.id if lease else None, "count": count,
        },
    )  # fmt: skip


@pytest.mark.fault("Reaper", "10,000 rows that cannot be acted on before one that can")
async def test_ten_thousand_dead_tasks_that_somebody_has_locked_do_not_keep_the_reaper_from_the_last(
    crew: Crew, watcher: AsyncConnection, locker: AsyncConnection
) -> None:
    await crew.worker(queues=["nothing"])
    lease = await new_lease(watcher, worker="vanished")
    await insert_many(watcher, MANY, "quick", lease)
    last = await submit(watcher, name="quick")  # its id is after all of theirs
    (claimed,) = await claim_some(watcher, lease, 1, name="quick")
    assert claimed.id == last
    await locker.execute("SELECT FROM fleet.task WHERE id <> %s FOR UPDATE", (last,))
    began = await value(watcher, NOW)
    await expire_lease(watcher, lease)
    await until(watcher, "SELECT state = 'QUEUED' FROM fleet.task WHERE id = %s", last)
    took = "SELECT extract(epoch FROM at - %s)::float8 FROM fleet.attempt WHERE task_id = %s"
    assert await value(watcher, took, began, last) < bound() + SLACK_SECONDS
    assert await value(watcher, RUNNING) == MANY  # the others still wait for whoever holds them
    await locker.rollback()
    await until(watcher, RUNNING, is_=lambda running: running == 0)
    assert await value(watcher, LOST) == MANY + 1
    assert (await counters(watcher))["reclaims", "default", ""] == MANY + 1
    await until(watcher, UNCLEARED, is_=lambda leases: leases == 0)


@pytest.mark.fault("Reaper", "10,000 rows that cannot be acted on before one that can")
async def test_ten_thousand_tasks_that_nobody_here_can_run_do_not_keep_a_worker_from_the_one_behind_them(
    crew: Crew, watcher: AsyncConnection
) -> None:
    await insert_many(watcher, MANY, "of another program", None)
    await watcher.execute("ANALYZE fleet.task")
    await crew.worker()
    tasks = [await submit(watcher, name="quick") for _ in range(5)]
    for task in tasks:
        assert await terminal(watcher, task) == "SUCCEEDED"
    waited = "SELECT max(extract(epoch FROM started_at - created_at))::float8 FROM fleet.task WHERE id = ANY (%s)"
    assert await value(watcher, waited, tasks) < 1.0 + SLACK_SECONDS
    untouched = "SELECT count(*) FROM fleet.task WHERE name = 'of another program' AND state = 'QUEUED' AND attempt = 0"
    assert await value(watcher, untouched) == MANY


@pytest.mark.fault("Reaper", "a task whose name no process knows")
async def test_a_dead_workers_tasks_of_names_that_no_other_process_knows_are_settled_like_all(
    crew: Crew, watcher: AsyncConnection
) -> None:
    lease = await new_lease(watcher, worker="vanished")
    tasks = [await submit(watcher, name="unheard of") for _ in range(2)]
    for repeatable in (True, False):
        await claim_some(watcher, lease, 1, name="unheard of", idempotent=repeatable)
    await expire_lease(watcher, lease)
    await crew.worker()
    await until(watcher, RUNNING, is_=lambda running: running == 0)
    states = [(await row(watcher, task))["state"] for task in tasks]
    assert states == ["QUEUED", "FAILED"]
    after_it = await submit(watcher, name="quick")
    assert await terminal(watcher, after_it) == "SUCCEEDED"
    assert (await row(watcher, tasks[0]))["attempt"] == 1  # it waits for a process that knows it


@pytest.mark.timeout(600)
@pytest.mark.fault("Reaper", "a worker restarted under the same name 100 times")
async def test_started_a_hundred_times_under_one_name_five_at_a_time_each_is_reaped_for_itself(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    tasks: list[UUID] = []
    for _ in range(20):
        workers = await crew.workers(5, name="phoenix", slots=1)
        held = [await submit(watcher, name="act_once", priority=0) for _ in range(5)]
        pids = {(await stage.arrival(task)).pid for task in held}
        assert pids == {worker.pid for worker in workers}
        for worker in workers:
            worker.kill()
        tasks += held
    await crew.worker(name="phoenix", slots=1)
    for task in tasks:
        assert await terminal(watcher, task) == "FAILED"
    last = await submit(watcher, name="quick")
    assert await terminal(watcher, last) == "SUCCEEDED"
    leases = "SELECT count(*), count(*) FILTER (WHERE state = 'REAPED') FROM fleet.lease WHERE worker = 'phoenix'"
    await until(watcher, UNCLEARED, is_=lambda count: count == 0)
    assert await (await watcher.execute(leases)).fetchone() == (101, 100)
    await judge_all(watcher, sink)


@pytest.mark.timeout(300)
@pytest.mark.fault("Reaper", "60 % of 20 workers are killed at once")
async def test_twelve_of_twenty_workers_killed_at_once_the_eight_settle_it_all_in_time(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    workers = await crew.workers(20, slots=2)
    tasks = [task for _ in range(20) for task in await submit_both(watcher)]
    actors = [await stage.arrival(task) for task in tasks]
    doomed = {worker.pid for worker in workers[:12]}
    lost = [actor.task_id for actor in actors if actor.pid in doomed]
    assert len(lost) == 24
    stage.then = play
    killed_at = await value(watcher, NOW)
    for worker in workers[:12]:
        worker.send(signal.SIGKILL)
    for worker in workers[:12]:
        worker.kill()
    await recovered(watcher, "60 % of 20 workers are killed at once", lost, killed_at)
    for actor in actors:
        if actor.pid not in doomed:
            play(actor)
    for task in tasks:
        expected = "FAILED" if task in lost and task in tasks[1::2] else "SUCCEEDED"
        assert await terminal(watcher, task) == expected
        assert (await row(watcher, task))["losses"] == (task in lost)
    await until(watcher, UNCLEARED, is_=lambda count: count == 0)
    await judge_all(watcher, sink)
