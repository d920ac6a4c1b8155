"""Who may take part: each is a script of the product's own verbs, and does after a lost reply what the product does."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from fleet.errors import IdempotencyConflict
from fleet.events import Event, Events, TaskFenced, TaskSettled
from fleet.postgres import cancel, claim, dead_letter, expire, heartbeat, prune, reap
from fleet.postgres.database import AsyncConnection, Statement, run
from fleet.postgres.submit import Submission, accepted, statement
from fleet.retry import BackOff
from fleet.task import Cancelled, ClaimedTask, Errored, FailureCode, Outcome, Released, Settlement, Succeeded
from fleet.worker.settler import Settler
from tests.simulation.actor import Actor
from tests.simulation.theatre import Stagehand
from tests.simulation.world import HANDLERS, LANES, NOW, Told, World

T = TypeVar("T")
Script = Callable[[Actor], Coroutine[Any, Any, None]]

OUTCOMES: dict[str, Outcome] = {
    "succeed": Succeeded("1"),
    "retry": Errored(FailureCode.HANDLER_ERROR, "boom", NOW),
    "fail": Errored(FailureCode.HANDLER_ERROR, "boom", None),
    "release": Released("later"),
    "cancelled": Cancelled("asked to"),
}

LEASE_EXPIRES = Statement("""-- time passes: the lease expires
UPDATE fleet.lease SET renewed_at = renewed_at - ttl, expires_at = clock_timestamp()
WHERE id = :lease::uuid AND state IN ('LIVE', 'DRAINING')
""")
TASKS_EXPIRE = Statement("""-- time passes: waiting tasks expire
UPDATE fleet.task SET expires_at = clock_timestamp()
WHERE id = ANY (:ids::uuid[]) AND state = 'QUEUED' AND expires_at IS NOT NULL
""")


async def insist(world: World, actor: Actor, verb: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    """Ask until there is an answer, each time on a session of its own."""
    while True:
        try:
            return await verb(await world.theatre.session(actor))
        except psycopg.OperationalError:
            continue


def claimer(world: World, worker: str, *outcomes: str, free: int = 10) -> Script:
    """Claims once, starts what it is given and settles it. After a lost reply: looks what it holds, and hands it back."""

    async def script(actor: Actor) -> None:
        lease = world.leases[worker]
        try:
            connection = await world.theatre.session(actor)
            claimed = await claim.claim(connection, lease, LANES, HANDLERS, free)
        except psycopg.OperationalError:
            await reconcile(world, actor, worker)
            return
        if claimed is None:
            actor.says("the lease is over")
            return
        tasks = sorted(claimed.tasks, key=lambda task: task.id)
        actor.says(", ".join(f"{world.name(task.id)} attempt {task.attempt}" for task in tasks) or "nothing")
        world.start(tasks)
        await settle(world, actor, [_ending(task, outcomes, place) for place, task in enumerate(tasks)])

    return script


async def reconcile(world: World, actor: Actor, worker: str) -> None:
    lease, mine = world.leases[worker], [task.id for task in world.held.get(worker, [])]
    found = await insist(world, actor, lambda connection: claim.reconcile(connection, lease, mine))
    actor.says(f"did not know of {[world.name(task.id) for task in found]}")
    await settle(world, actor, [Settlement(task, Released("the answer to its claim was lost")) for task in found])


def settler(world: World, worker: str, *outcomes: str) -> Script:
    """Settles what the worker holds, by the product's settler."""

    async def script(actor: Actor) -> None:
        held = world.held[worker]
        await settle(world, actor, [_ending(task, outcomes, place) for place, task in enumerate(held)])

    return script


async def settle(world: World, actor: Actor, settlements: Sequence[Settlement]) -> None:
    """Run the product's settler until all of these are settled or refused for good."""
    if not settlements:
        return
    events = Events()
    events.subscribe(lambda event: _learn(world, actor, event))
    settler = Settler(Stagehand(world.theatre, actor), events, BackOff(NOW, NOW))
    for settlement in settlements:
        settler.put(settlement)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(settler.run())
        while settler.unsettled:
            await settler.settled.wait()
            settler.settled.clear()
        running.cancel()


def _learn(world: World, actor: Actor, event: Event) -> None:
    match event:
        case TaskSettled((task, outcome, _), state):
            world.ledger.told.append(Told(task.id, task.attempt, task.lease.id, outcome, accepted=True))
            actor.says(f"{world.name(task.id)} is {state}")
        case TaskFenced((task, outcome, _)):
            world.ledger.told.append(Told(task.id, task.attempt, task.lease.id, outcome, accepted=False))
            actor.says(f"{world.name(task.id)} attempt {task.attempt} is refused")
        case _:
            pass


def renewer(world: World, worker: str) -> Script:
    """One heartbeat."""

    async def script(actor: Actor) -> None:
        lease = world.leases[worker]
        rows = await insist(world, actor, lambda connection: run(connection, heartbeat.RENEW, lease=lease.id))
        actor.says(str(rows[0][0]) if rows else "the lease is over")

    return script


def drainer(world: World, worker: str, *, claims: bool = False) -> Script:
    """Drains: gives up the right to claim, hands back what never started, closes the lease. `claims`: and claims before.

    As in the product, the two statements on the lease are tried once: what is missed then, the reaper finds.
    """

    async def script(actor: Actor) -> None:
        lease, answered = world.leases[worker], True
        with suppress(psycopg.OperationalError):
            answered = not claims
            if claims:
                claimed = await claim.claim(await world.theatre.session(actor), lease, LANES, HANDLERS, 10)
                world.held.setdefault(worker, []).extend(claimed.tasks if claimed else [])
                answered = True
        with suppress(psycopg.OperationalError):
            drained = await heartbeat.drain(await world.theatre.session(actor), lease.id)
            actor.says("draining" if drained else "not live")
            if not answered:
                await reconcile(world, actor, worker)
        await settle(world, actor, [Settlement(task, Released("drained")) for task in world.held.get(worker, [])])
        with suppress(psycopg.OperationalError):
            await heartbeat.close(await world.theatre.session(actor), lease)

    return script


def reaper(world: World, worker: str) -> Script:
    """Has seen the worker's lease unrenewed for its TTL: accuses it, and sweeps what it held. Looks again if in doubt."""

    async def script(actor: Actor) -> None:
        me, lease = uuid7(), world.leases[worker]
        await run(await world.theatre.session(actor), LEASE_EXPIRES, lease=lease.id)
        ended: list[UUID] = []
        while True:
            try:
                connection = await world.theatre.session(actor)
                marked = await reap.mark(connection, me, [lease.id])
                actor.says("reaped" if marked else "not marked")
                swept = await reap.sweep(connection, reap.Sweeper(me, NOW, NOW), marked + ended)
            except psycopg.OperationalError:
                survey = await insist(world, actor, reap.survey)
                ended = [seen.id for seen in survey.leases if seen.ended]
            else:
                actor.says(f"requeued {swept.requeued}, failed {swept.failed}, cancelled {swept.cancelled}")
                return

    return script


def canceller(world: World, *tasks: UUID) -> Script:
    """Somebody wants these cancelled."""

    async def script(actor: Actor) -> None:
        answer = await insist(world, actor, lambda connection: cancel.cancel(connection, list(tasks), "operator"))
        for task, (state, changed) in answer.items():
            world.ledger.cancels.append((task, state, changed))
            actor.says(f"{world.name(task)} is {state}{'' if changed else ', too late'}")

    return script


def submitter(world: World, key: str, args: str = "{}", *, tries: int = 10) -> Script:
    """Submits under an idempotency key, and again under the same key while the answer is unknown."""
    submission = Submission(uuid7(), "default", "work", args, max_attempts=5, key=key)

    async def script(actor: Actor) -> None:
        for _ in range(tries):
            with suppress(psycopg.OperationalError):
                await submit_once(
                    world, actor, submission._replace(id=uuid7())
                )  # only the key says that it is the same
                return

    return script


async def submit_once(world: World, actor: Actor, submission: Submission) -> None:
    query, values = statement(submission)
    (row,) = await run(await world.theatre.session(actor), query, **values)
    try:
        task, created = accepted(submission, row)
    except IdempotencyConflict:
        world.ledger.conflicts.append(submission)
        actor.says("conflict")
    else:
        world.ledger.submitted.append((submission, task, created))
        actor.says(f"{world.name(task)}{'' if created else ', known'}")


def judge(world: World, verdict: str, *tasks: UUID, attempt: int = 1) -> Script:
    """An operator who saw this attempt fail requeues the tasks, or discards them."""
    verb, book = {
        "requeue": (dead_letter.requeue, world.ledger.requeued),
        "discard": (dead_letter.discard, world.ledger.discarded),
    }[verdict]

    async def script(actor: Actor) -> None:
        done = await insist(
            world, actor, lambda connection: verb(connection, dict.fromkeys(tasks, attempt), "operator")
        )
        book.extend(done)
        actor.says(f"{verdict} {[world.name(task) for task in done]}")

    return script


def expirer(world: World, *tasks: UUID) -> Script:
    """Time passes beyond these tasks' `expires_at`, and somebody's maintenance looks."""

    async def script(actor: Actor) -> None:
        await run(await world.theatre.session(actor), TASKS_EXPIRE, ids=list(tasks))
        count = await insist(world, actor, lambda connection: expire.expire(connection, uuid7()))
        actor.says(f"{count} expired")

    return script


def pruner(world: World) -> Script:
    """Deletes whatever is terminal, as if its retention were over."""

    async def script(actor: Actor) -> None:
        later = (uuid7().int >> 80) + 1000
        count = await insist(world, actor, lambda connection: prune.prune(connection, uuid7(), later, timedelta(0)))
        actor.says(f"{count} purged")

    return script


def _ending(task: ClaimedTask, outcomes: Sequence[str], place: int) -> Settlement:
    """What has begun and may not be repeated is never handed back."""
    name = outcomes[place % len(outcomes)]
    return Settlement(task, OUTCOMES["succeed" if name == "release" and not task.repeatable else name])
