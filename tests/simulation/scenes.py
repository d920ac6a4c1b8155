"""Who meets whom: the pairs that must come out well in whatever order their statements run."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from fleet.postgres import settle
from fleet.task import Settlement
from tests.simulation.cast import (
    OUTCOMES,
    Script,
    canceller,
    claimer,
    drainer,
    expirer,
    judge,
    pruner,
    reaper,
    renewer,
    settler,
    submitter,
)
from tests.simulation.play import Scene
from tests.simulation.world import World

HOUR = timedelta(hours=1)
Cast = Mapping[str, Script]


def holding(outcome: str, *, repeatable: bool = True, against: str = "reaper") -> Scene:
    """A holder ends its attempt, and somebody else comes."""

    async def scene(world: World) -> Cast:
        task = await world.submit(repeatable=repeatable)
        world.start(await world.hold("holder"))
        await world.lease("rival")
        others = {
            "reaper": reaper(world, "holder"),
            "canceller": canceller(world, task),
            "rival": claimer(world, "rival", "succeed"),
        }
        return {against: others[against], "holder": settler(world, "holder", outcome)}

    return scene


async def claim_and_reap(world: World) -> Cast:
    await world.submit()
    await world.submit(repeatable=False)
    await world.lease("holder")
    return {"reaper": reaper(world, "holder"), "holder": claimer(world, "holder", "succeed")}


async def claim_and_claim(world: World) -> Cast:
    for repeatable in (True, False, True):
        await world.submit(repeatable=repeatable)
    await world.lease("holder")
    await world.lease("rival")
    return {
        "rival": claimer(world, "rival", "retry", "succeed", free=2),
        "holder": claimer(world, "holder", "succeed", free=2),
    }


async def claim_and_cancel(world: World) -> Cast:
    task = await world.submit()
    await world.lease("holder")
    return {"canceller": canceller(world, task), "holder": claimer(world, "holder", "release")}


async def renew_and_reap(world: World) -> Cast:
    await world.submit(repeatable=False)
    world.start(await world.hold("holder"))
    return {"reaper": reaper(world, "holder"), "holder": renewer(world, "holder")}


async def drain_and_reap(world: World) -> Cast:
    await world.submit(repeatable=False)
    await world.hold("holder")
    return {"reaper": reaper(world, "holder"), "holder": drainer(world, "holder")}


async def claim_drain_and_reap(world: World) -> Cast:
    await world.submit(repeatable=False)
    await world.lease("holder")
    return {"reaper": reaper(world, "holder"), "holder": drainer(world, "holder", claims=True)}


async def drain_and_cancel(world: World) -> Cast:
    task = await world.submit()
    await world.lease("holder")
    return {"canceller": canceller(world, task), "holder": drainer(world, "holder", claims=True)}


async def drain_and_claim(world: World) -> Cast:
    await world.submit(repeatable=False)
    await world.lease("holder")
    await world.lease("rival")
    return {"rival": claimer(world, "rival", "succeed"), "holder": drainer(world, "holder", claims=True)}


def reap_and_cancel(*, repeatable: bool) -> Scene:
    async def scene(world: World) -> Cast:
        task = await world.submit(repeatable=repeatable)
        world.start(await world.hold("holder"))
        return {"reaper": reaper(world, "holder"), "canceller": canceller(world, task)}

    return scene


async def reap_and_reap(world: World) -> Cast:
    await world.submit(max_losses=1)
    await world.submit(repeatable=False)
    await world.submit()
    world.start(await world.hold("holder"))
    return {"reaper": reaper(world, "holder"), "other": reaper(world, "holder")}


def submits(*args: str) -> Scene:
    async def scene(world: World) -> Cast:
        return {f"client {number}": submitter(world, "key", text) for number, text in enumerate(args, 1)}

    return scene


async def submit_and_undo(world: World) -> Cast:
    return {"client": submitter(world, "key"), "quitter": submitter(world, "key", tries=1)}


async def requeue_and_reap(world: World) -> Cast:
    task = await world.submit(repeatable=False)
    world.start(await world.hold("holder"))
    return {"reaper": reaper(world, "holder"), "operator": judge(world, "requeue", task)}


async def discard_and_reap(world: World) -> Cast:
    task = await world.submit(repeatable=False)
    world.start(await world.hold("holder"))
    return {"reaper": reaper(world, "holder"), "operator": judge(world, "discard", task)}


def dead(verdict: str, against: str) -> Scene:
    """A dead letter is judged, and somebody else comes."""

    async def scene(world: World) -> Cast:
        task = await world.submit(repeatable=False)
        held = await world.hold("holder")
        world.start(held)
        failed = [Settlement(held[0], OUTCOMES["fail"])]
        await settle.give_back(world.theatre.watch, held[0].lease, failed)
        await world.lease("rival")
        others = {
            "claim": claimer(world, "rival", "fail"),
            "cancel": canceller(world, task),
            "requeue": judge(world, "requeue", task),
            "prune": pruner(world),
        }
        return {"other": others[against], "operator": judge(world, verdict, task)}

    return scene


def expiring(against: str) -> Scene:
    async def scene(world: World) -> Cast:
        task = await world.submit(expires_at=datetime.now(UTC) + HOUR)
        await world.lease("holder")
        others = {
            "claim": claimer(world, "holder", "release"),
            "cancel": canceller(world, task),
            "expire": expirer(world, task),
        }
        return {"other": others[against], "expirer": expirer(world, task)}

    return scene


PAIRS: dict[str, Scene] = {
    "claim, reap": claim_and_reap,
    "claim, claim": claim_and_claim,
    "claim, cancel": claim_and_cancel,
    "renew, reap": renew_and_reap,
    "succeed, reap": holding("succeed"),
    "succeed once, reap": holding("succeed", repeatable=False),
    "retry, reap": holding("retry"),
    "release, reap": holding("release"),
    "fail once, reap": holding("fail", repeatable=False),
    "release, claim": holding("release", against="rival"),
    "release, cancel": holding("release", against="canceller"),
    "retry, cancel": holding("retry", against="canceller"),
    "cancel, reap": reap_and_cancel(repeatable=True),
    "cancel once, reap": reap_and_cancel(repeatable=False),
    "drain, reap": drain_and_reap,
    "claim and drain, reap": claim_drain_and_reap,
    "claim and drain, cancel": drain_and_cancel,
    "claim and drain, claim": drain_and_claim,
    "reap, reap": reap_and_reap,
    "submit, submit": submits("{}", "{}"),
    "submit, submit another": submits("{}", '{"n": 2}'),
    "submit, undo": submit_and_undo,
    "requeue, reap": requeue_and_reap,
    "discard, reap": discard_and_reap,
    "requeue, claim": dead("requeue", "claim"),
    "requeue, cancel": dead("requeue", "cancel"),
    "requeue, prune": dead("requeue", "prune"),
    "discard, requeue": dead("discard", "requeue"),
    "discard, prune": dead("discard", "prune"),
    "expire, claim": expiring("claim"),
    "expire, cancel": expiring("cancel"),
    "expire, expire": expiring("expire"),
}
