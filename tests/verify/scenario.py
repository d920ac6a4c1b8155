"""One run in which everything happens once: zombies, reaps, lost replies, cancels, retries, releases, drains, requeues.

Each scene has a queue and workers of its own; what a broken statement does to one does not disturb the others.
"""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from fleet.events import ChildEnded, DrainStarted, Events, LeasesReaped, TasksReclaimed
from fleet.postgres import claim, expire, heartbeat, journal, prune, reap
from fleet.postgres.database import AsyncConnection, run
from fleet.task import Cancelled, Errored, FailureCode, Released, Succeeded
from fleet.verify.dump import dump
from fleet.verify.history import record_events
from tests.verify.cast import Actor, Client

NOW = timedelta(0)
DONE = Succeeded('{"words": 1}')
WORK = {"work": True, "once": False}


def error(delay: timedelta | None) -> Errored:
    return Errored(FailureCode.HANDLER_ERROR, "boom", delay)


class Scenario:
    """Plays all scenes on one database and writes the history of them; `tasks` are the ids, by the name of the scene."""

    def __init__(
        self, connection: AsyncConnection, other: AsyncConnection, folder: Path, *, journaled: bool = True
    ) -> None:
        self.connection = connection
        self.other = other
        self.folder = folder
        self.journaled = journaled
        self.client = Client(connection, folder)
        self.tasks: dict[str, UUID] = {}
        self.troubles: list[str] = []
        self.events = Events()
        record_events(self.events, folder, "reaper")

    async def play(self, *only: str) -> None:
        """Play all scenes, or those that are named."""
        if self.journaled:
            await journal.install(self.connection)
        scenes: list[Callable[[str], Awaitable[None]]] = [
            self.plain, self.held, self.zombie, self.second_word, self.once, self.stale_sweep, self.live, self.ended,
            self.late_claim, self.retry, self.exhausted, self.dead, self.released, self.drained, self.cancelled,
            self.asked_to_stop, self.too_late, self.keyed, self.told_twice, self.doubtful, self.unheard, self.mystery,
            self.expired, self.requeued_in_vain, self.old_waiting, self.old,
        ]  # fmt: skip
        for scene in scenes:
            if only and scene.__name__ not in only:
                continue
            try:
                await scene(scene.__name__)
            except psycopg.Error as trouble:
                self.troubles.append(f"{scene.__name__}: {trouble}")
        await dump(self.connection, self.folder)

    async def submit(self, scene: str, **more: object) -> UUID:
        self.tasks[scene] = await self.client.submit(scene, **more)  # type: ignore[arg-type]
        return self.tasks[scene]

    async def worker(self, queue: str, names: dict[str, bool] = WORK) -> Actor:
        return await Actor.enter(self.connection, self.folder, queue, names)

    async def mark(self, *actors: Actor) -> list[UUID]:
        marked = await reap.mark(self.connection, uuid7(), [actor.lease.id for actor in actors])
        self.events.emit(LeasesReaped(tuple(marked)))
        return marked

    async def sweep(self, *actors: Actor) -> None:
        sweeper = reap.Sweeper(uuid7(), NOW, NOW)
        done = await reap.sweep(self.connection, sweeper, [actor.lease.id for actor in actors])
        self.events.emit(TasksReclaimed(done.requeued, done.failed, done.cancelled))

    async def reap(self, actor: Actor) -> None:
        await actor.expire()
        await self.mark(actor)
        await self.sweep(actor)

    async def plain(self, queue: str) -> None:
        await self.submit(queue, args={"text": "a b", "numbers": [1, None, 2.5]})
        worker = await self.worker(queue)
        await worker.report(await worker.take(queue), DONE)

    async def held(self, queue: str) -> None:
        """Another worker looks while the task runs."""
        await self.submit(queue)
        worker, other = await self.worker(queue), await self.worker(queue)
        tasks = await worker.take(queue)
        await other.report(await other.take(queue), DONE)
        await worker.report(tasks, DONE)

    async def zombie(self, queue: str) -> None:
        """A worker wakes up after its lease was reaped, while its successor is at work."""
        await self.submit(queue)
        worker, successor = await self.worker(queue), await self.worker(queue)
        old = await worker.take(queue)
        await self.reap(worker)
        new = await successor.take(queue)
        await worker.report(old, DONE)
        await successor.report(new, DONE)

    async def second_word(self, queue: str) -> None:
        """A worker reports the same attempt twice, and the second time says otherwise."""
        await self.submit(queue)
        worker = await self.worker(queue)
        tasks = await worker.take(queue)
        await worker.report(tasks, DONE)
        await worker.report(tasks, error(NOW))

    async def once(self, queue: str) -> None:
        """What must not be repeated loses its worker; another one looks for work."""
        await self.submit(queue, name="once")
        worker, other = await self.worker(queue), await self.worker(queue)
        await worker.take(queue)
        await self.reap(worker)
        await other.report(await other.take(queue), DONE)

    async def stale_sweep(self, queue: str) -> None:
        """A reaper stands still between reading its suspects and reclaiming them."""
        await self.submit(queue)
        worker, successor = await self.worker(queue), await self.worker(queue)
        await worker.take(queue)
        await worker.expire()
        await self.mark(worker)
        suspects = await run(
            self.connection, reap.SUSPECTS, after=reap.NOBODY, leases=[worker.lease.id], batch=reap.SWEEP_BATCH
        )
        await self.sweep(worker)
        tasks = await successor.take(queue)
        ids, attempts, leases, reasons = ([row[place] for row in suspects] for place in range(4))
        await run(
            self.connection, reap.RECLAIM, me=uuid7(), ids=ids, attempts=attempts, leases=leases, reasons=reasons,
            backoff_base=NOW, backoff_cap=NOW,
        )  # fmt: skip
        await successor.report(tasks, DONE)

    async def live(self, queue: str) -> None:
        """A worker is accused whose lease has time left."""
        await self.submit(queue)
        worker = await self.worker(queue)
        tasks = await worker.take(queue)
        await self.mark(worker)
        await worker.report(tasks, DONE)

    async def ended(self, queue: str) -> None:
        """A supervisor sees a process die and ends its lease at once; the dead cannot claim."""
        await self.submit(queue)
        worker = await self.worker(queue)
        self.events.emit(ChildEnded("worker 1", worker.pid, -9))
        ended = await reap.end(self.connection, uuid7(), [worker.lease.id])
        self.events.emit(LeasesReaped(tuple(ended)))
        await worker.take(queue)

    async def late_claim(self, queue: str) -> None:
        """A claim comes in a transaction that is older than the end of its lease's time."""
        worker = await self.worker(queue)
        async with self.other.transaction():
            await self.other.execute("SELECT 1")
            await worker.expire()
            await self.submit(queue)
            await worker.take(queue, connection=self.other)
        await self.mark(worker)
        await self.sweep(worker)

    async def retry(self, queue: str) -> None:
        await self.submit(queue)
        worker = await self.worker(queue)
        await worker.report(await worker.take(queue), error(NOW))
        await worker.report(await worker.take(queue), DONE)

    async def exhausted(self, queue: str) -> None:
        """A poison pill loses one worker after another."""
        await self.submit(queue, max_losses=2)
        for _ in range(3):
            worker = await self.worker(queue)
            await worker.take(queue)
            await self.reap(worker)

    async def dead(self, queue: str) -> None:
        """A task fails for good, and an operator puts it back."""
        task = await self.submit(queue, name="once")
        worker = await self.worker(queue)
        await worker.report(await worker.take(queue), error(None))
        await self.client.requeue(task, 1)
        await worker.report(await worker.take(queue), DONE)

    async def released(self, queue: str) -> None:
        await self.submit(queue)
        worker, other = await self.worker(queue), await self.worker(queue)
        await worker.report(await worker.claim(queue), Released("not started"))
        await other.report(await other.take(queue), DONE)

    async def drained(self, queue: str) -> None:
        """A worker drains while one task runs and another one comes in."""
        await self.submit(queue)
        worker = await self.worker(queue)
        running = await worker.take(queue)
        worker.events.emit(DrainStarted("the test said so"))
        await heartbeat.drain(self.connection, worker.lease.id)
        self.tasks[f"{queue}/newcomer"] = await self.client.submit(queue)
        await worker.report(await worker.claim(queue), Released("draining"))
        await worker.report(running, DONE)
        await heartbeat.close(self.connection, worker.lease)

    async def cancelled(self, queue: str) -> None:
        await self.client.cancel(await self.submit(queue))
        worker = await self.worker(queue)
        await worker.report(await worker.take(queue), DONE)

    async def asked_to_stop(self, queue: str) -> None:
        task = await self.submit(queue)
        worker = await self.worker(queue)
        tasks = await worker.take(queue)
        await self.client.cancel(task)
        await worker.report(tasks, Cancelled("somebody asked"))

    async def too_late(self, queue: str) -> None:
        task = await self.submit(queue)
        worker = await self.worker(queue)
        await worker.report(await worker.take(queue), DONE)
        await self.client.cancel(task)

    async def keyed(self, queue: str) -> None:
        """A key is used once, and later for something else."""
        await self.submit(queue, key="one")
        await self.client.submit(queue, key="one", args={"text": "other"})

    async def told_twice(self, queue: str) -> None:
        """The answer to a submission is lost, and the client asks again: `told_twice` is what the repeat brought along."""
        await self.client.submit(queue, key="two", lost=True)
        await self.submit(queue, key="two")

    async def doubtful(self, queue: str) -> None:
        await self.submit(queue, lost=True)

    async def unheard(self, queue: str) -> None:
        """The answer to a claim is lost: the task is found and handed back."""
        await self.submit(queue)
        worker, other = await self.worker(queue), await self.worker(queue)
        await worker.claim(queue)
        await worker.report(await claim.reconcile(self.connection, worker.lease, []), Released("nobody heard of it"))
        await other.report(await other.take(queue), DONE)

    async def mystery(self, queue: str) -> None:
        """Nobody can run this."""
        await self.submit(queue, name="mystery")
        worker = await self.worker(queue, {"work": True})
        await worker.report(await worker.take(queue), DONE)

    async def expired(self, queue: str) -> None:
        task = await self.submit(queue)
        await self.connection.execute("UPDATE fleet.task SET expires_at = clock_timestamp() WHERE id = %s", (task,))
        await expire.expire(self.connection, uuid7())

    async def requeued_in_vain(self, queue: str) -> None:
        """An operator asks for a task that has succeeded to be put back."""
        task = await self.submit(queue)
        worker = await self.worker(queue)
        await worker.report(await worker.take(queue), DONE)
        await self.client.requeue(task, 1)

    async def old_waiting(self, queue: str) -> None:
        """It has waited for longer than anything is kept."""
        task = await self.submit(queue)
        await self.connection.execute(
            "UPDATE fleet.task SET created_at = created_at - interval '30 days' WHERE id = %s", (task,)
        )

    async def old(self, queue: str) -> None:
        """It has been kept long enough, and is purged."""
        task = await self.submit(queue)
        worker = await self.worker(queue)
        await worker.report(await worker.take(queue), DONE)
        await self.connection.execute(
            "UPDATE fleet.task SET finished_at = finished_at - interval '30 days' WHERE id = %s", (task,)
        )
        later = round(time.time() * 1000) + timedelta(days=30) // timedelta(milliseconds=1)
        await prune.prune(self.connection, uuid7(), later, timedelta(days=7))
