"""The statements of the one-instance task service that this project grew from, now for many instances."""

import asyncio
import signal
from uuid import UUID

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import Crew, Sink, terminal, until, value
from tests.processes.stage import Stage
from tests.support import counters, history, row, submit

FIRST, SECOND = "the first text has six words", "second text"


async def submit_both(watcher: AsyncConnection) -> tuple[UUID, UUID]:
    first = await submit(watcher, name="analyze", args=f'{{"text": "{FIRST}"}}', max_attempts=1)
    second = await submit(watcher, name="analyze", args=f'{{"text": "{SECOND}"}}', max_attempts=1)
    return first, second


async def table(watcher: AsyncConnection) -> list[tuple[object, ...]]:
    """Every task and every lease, as they stand, apart from what a heartbeat changes."""
    tasks = await (await watcher.execute("SELECT * FROM fleet.task ORDER BY id")).fetchall()
    leases = await (await watcher.execute("SELECT id, state, pid FROM fleet.lease ORDER BY id")).fetchall()
    return [*tasks, *leases]


async def test_a_killed_worker_leaves_running_what_it_had_claimed_and_queued_what_it_had_not(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    worker = await crew.worker(slots=1)
    first, second = await submit_both(watcher)
    await stage.arrival(first)
    states = await value(watcher, "SELECT array_agg(state ORDER BY id) FROM fleet.task")
    assert states == ["RUNNING", "QUEUED"]

    worker.kill()

    one, two = await row(watcher, first), await row(watcher, second)
    assert (one["state"], one["attempt"], one["finished_at"]) == ("RUNNING", 1, None)
    assert (two["state"], two["attempt"], two["args"]) == ("QUEUED", 0, {"text": SECOND})
    assert await value(watcher, "SELECT state FROM fleet.lease") == "LIVE"  # no code of its own ran
    # Long after its lease's end, too: without another instance there is nobody to judge.
    await until(watcher, "SELECT expires_at < clock_timestamp() FROM fleet.lease")
    assert (await row(watcher, first), await row(watcher, second)) == (one, two)
    assert sink.attempts("start", second) == []


async def test_recovery_fails_what_may_have_had_an_effect_runs_what_was_queued_and_a_second_changes_nothing(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    worker = await crew.worker(slots=1)
    lease = await crew.lease_of(worker)
    first, second = await submit_both(watcher)
    await stage.arrival(first)
    worker.kill()

    rescuer = await crew.worker(slots=1)
    actor = await stage.arrival(second)
    actor.tell("return null")

    assert await terminal(watcher, first) == "FAILED"
    assert await terminal(watcher, second) == "SUCCEEDED"
    one, two = await row(watcher, first), await row(watcher, second)
    assert one["failure_code"] == "lease_expired"
    who = f"worker exited before completion: lease {lease} of {worker.name} on host "
    assert one["failure_reason"].startswith(who)
    assert f"pid {worker.pid}, last renewed at " in one["failure_reason"]
    assert (one["result"], one["losses"], one["lease_id"]) == (None, 1, None)
    assert two["result"] == {"words": 2}
    assert sink.attempts("start", first) == [1]
    await until(watcher, "SELECT cleared_at IS NOT NULL FROM fleet.lease WHERE id = %s", lease)

    before = await table(watcher)
    counted = await counters(watcher)
    assert counted == {("lease_expirations", "", ""): 1, ("dead_letters", "default", "lease_expired"): 1}
    again = await crew.worker(slots=1)  # a second recovery, by one more instance with its own full pass
    reaps = "SELECT renewed_at > granted_at + 3 * interval '0.34 s' FROM fleet.lease WHERE pid = %s"
    await until(watcher, reaps, again.pid)
    after = await table(watcher)
    assert [line for line in after if line[-1] != again.pid] == before
    assert await counters(watcher) == counted
    third = await submit(watcher, name="analyze", args=f'{{"text": "{SECOND}"}}', max_attempts=1)
    assert third > second  # new ids go on after the largest
    assert rescuer.popen.poll() is None


async def test_starting_stopping_killing_and_recovering_one_instance_does_not_touch_the_rows_of_another(
    crew: Crew, stage: Stage, watcher: AsyncConnection, sink: Sink
) -> None:
    keeper = await crew.worker(slots=1)
    mine = await submit(watcher, name="act_once", max_attempts=1)
    actor = await stage.arrival(mine)
    before = await row(watcher, mine)

    visitor = await crew.worker(slots=1)  # starts, and drains
    visitor.send(signal.SIGTERM)
    assert await visitor.ended() == 0
    assert await row(watcher, mine) == before
    victim = await crew.worker(slots=1)  # starts, is killed while it holds a task, and is recovered
    lost = await submit(watcher, name="act_once", max_attempts=1)
    await stage.arrival(lost)
    victim.kill()
    assert await terminal(watcher, lost) == "FAILED"

    assert await row(watcher, mine) == before  # for longer than a lease: its worker is alive, so it is nobody else's
    actor.tell('return "done"')
    assert await terminal(watcher, mine) == "SUCCEEDED"
    assert (await row(watcher, mine))["attempt"] == 1
    assert sink.attempts("start", mine) == [1]
    assert await history(watcher, mine) == []
    assert await value(watcher, "SELECT state FROM fleet.lease WHERE pid = %s", keeper.pid) == "LIVE"


async def test_a_notification_gives_no_right_to_run_only_the_claim_does(
    crew: Crew, watcher: AsyncConnection, sink: Sink
) -> None:
    await crew.workers(4, slots=4)
    await until(watcher, "SELECT count(*) = 4 FROM fleet.lease WHERE idle")
    tasks = []
    for _ in range(25):  # each commit wakes all of them at once
        tasks.append(await submit(watcher, name="quick_once", max_attempts=1))
        await asyncio.gather(*[watcher.execute("SELECT pg_notify('fleet', 'default')") for _ in range(3)])
    states = await asyncio.gather(*[terminal(watcher, task) for task in tasks])
    assert set(states) == {"SUCCEEDED"}
    starts = sink.by_task("start")
    assert {task: starts[task] for task in tasks} == {task: [1] for task in tasks}
    # Told of a task that nobody may claim, all of them leave it alone.
    await watcher.execute("UPDATE fleet.queue SET paused = true")
    held = await submit(watcher, name="quick_once", max_attempts=1)
    await watcher.execute("SELECT pg_notify('fleet', 'default')")
    await until(
        watcher, "SELECT min(renewed_at) > (SELECT created_at FROM fleet.task WHERE id = %s) FROM fleet.lease", held
    )
    assert (await row(watcher, held))["state"] == "QUEUED"
    assert sink.attempts("start", held) == []
