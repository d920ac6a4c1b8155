"""One schedule from the first line to the last: set the scene, let things happen, heal, judge."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from tests.simulation.actor import How, Violation
from tests.simulation.cast import Script
from tests.simulation.conductor import Bounds, Choose, Conductor
from tests.simulation.judge import judge
from tests.simulation.theatre import Theatre
from tests.simulation.world import World

Scene = Callable[[World], Awaitable[Mapping[str, Script]]]


async def play(theatre: Theatre, scene: Scene, choose: Choose, bounds: Bounds) -> Counter[How]:
    """Play one schedule of a scene; return how its steps were taken. Raises Violation, with the story, if it went wrong."""
    await theatre.empty()
    world = World(theatre)
    cast = await scene(world)
    conductor = Conductor(world.story, theatre.blockers, theatre.kill)
    for name, script in cast.items():
        conductor.add(name, script)
    await conductor.play(choose, bounds)
    await world.heal()
    wrong = judge(await theatre.facts(), world.ledger)
    if wrong:
        raise Violation(_readable(world, wrong))
    return conductor.taken


def _readable(world: World, wrong: list[str]) -> str:
    text = "\n".join([*wrong, "after", str(world.story)])
    for number, task in enumerate(world.tasks, 1):
        text = text.replace(f"UUID('{task}')", f"task {number}").replace(str(task), f"task {number}")
    for worker, lease in world.leases.items():
        text = text.replace(f"UUID('{lease.id}')", worker).replace(str(lease.id), worker)
    return text
