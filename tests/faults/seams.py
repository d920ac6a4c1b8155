"""Holding a worker at one of its fault points, with its handlers running and another worker there to take over."""

import signal
from uuid import UUID

from fleet.postgres.database import AsyncConnection
from fleet.testing.faultpoints import FaultPoints, Hit
from tests.faults.steps import LIVE, play
from tests.processes.crew import Crew, Process, value
from tests.processes.stage import Actor, Stage


async def hold_a_heartbeat(
    points: FaultPoints, point: str, crew: Crew, stage: Stage, watcher: AsyncConnection, tasks: tuple[UUID, UUID]
) -> Hit:
    """Let heartbeats pass until both handlers run and another worker is there; hold the next."""
    hit = await points.hit(point)
    while not all(stage.starts(task) for task in tasks):
        hit.go()
        hit = await points.hit(point)
    crew.start(slots=2)
    while await value(watcher, LIVE) < 2:
        hit.go()
        hit = await points.hit(point)
    return hit


async def hold_a_drain(
    points: FaultPoints, point: str, crew: Crew, stage: Stage, victim: Process, tasks: tuple[UUID, UUID]
) -> Hit:
    """Ask the victim to drain while both handlers run and another worker is there."""
    for task in tasks:
        await stage.arrival(task)
    await crew.worker(slots=2)
    victim.send(signal.SIGTERM)
    return await points.hit(point)


async def stand(
    points: FaultPoints,
    point: str,
    crew: Crew,
    stage: Stage,
    watcher: AsyncConnection,
    tasks: tuple[UUID, UUID],
    *,
    returns: bool,
) -> tuple[Process, Hit]:
    """Start a worker; return it when it stands at its seam, with another there. `returns`: its second task does, before."""
    worker = crew.start(slots=2, drain_timeout="60s", faultpoints=points.environment["FLEET_FAULTPOINTS"])

    def direct(actor: Actor) -> None:
        if actor.pid != worker.pid or (actor.task_id == tasks[1] and returns):
            play(actor)

    stage.then = direct
    hit = await hold(points, point, crew, stage, watcher, worker, tasks)
    assert hit.pid == worker.pid
    return worker, hit


async def hold(
    points: FaultPoints,
    point: str,
    crew: Crew,
    stage: Stage,
    watcher: AsyncConnection,
    victim: Process,
    tasks: tuple[UUID, UUID],
) -> Hit:
    """Return when the victim stands at its seam, and another worker is there to look after what it leaves."""
    if point.startswith("renew"):
        return await hold_a_heartbeat(points, point, crew, stage, watcher, tasks)
    if point.startswith("drain"):
        return await hold_a_drain(points, point, crew, stage, victim, tasks)
    hit = await points.hit(point)
    await crew.worker(slots=2)
    return hit
