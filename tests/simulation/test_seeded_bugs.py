"""A conductor that finds nothing proves nothing: each of these bugs is found, and the story of it is short."""

from collections.abc import Coroutine, Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.postgres import claim, reap, settle, submit
from fleet.postgres.database import Statement
from tests.simulation.actor import How, Violation
from tests.simulation.cast import Script, claimer, reaper, settler
from tests.simulation.conductor import Bounds
from tests.simulation.explore import Prompted, explore
from tests.simulation.play import Scene, play
from tests.simulation.plot import Plot, plots, quiet
from tests.simulation.scenes import PAIRS
from tests.simulation.theatre import Theatre
from tests.simulation.world import World

SHORT = 16  # steps


async def zombie(world: World) -> Mapping[str, Script]:
    await world.submit()
    world.start(await world.hold("holder"))
    await world.lease("rival")
    return {
        "reaper": reaper(world, "holder"),
        "rival": claimer(world, "rival", "succeed"),
        "zombie": settler(world, "holder", "succeed"),
    }


async def overtaken(world: World) -> Mapping[str, Script]:
    await world.submit()
    world.start(await world.hold("holder"))
    await world.lease("rival")
    return {
        "reaper": reaper(world, "holder"),
        "holder": settler(world, "holder", "retry"),
        "rival": claimer(world, "rival", "succeed"),
    }


# The reaper has read its suspects when the holder gives the task back, and the rival has claimed it when it reclaims.
OVERTAKEN = [*3 * [("reaper", How.WHOLE)], ("holder", How.WHOLE), ("rival", How.WHOLE), ("reaper", How.WHOLE)]
FENCE = "found.state = 'RUNNING' AND found.attempt = input.attempt AND found.lease_id = :lease::uuid"
RECHECK = "WHERE state = 'RUNNING' AND attempt = attempt_seen AND lease_id = lease_seen"
IS_EMPTY = "AND NOT EXISTS (SELECT FROM fleet.task WHERE task.lease_id = lease.id AND task.state = 'RUNNING')"

# name → (where, statement, what is replaced, by what, the scene, its bounds or its steps, what is said)
BUGS: dict[str, tuple[ModuleType, str, str, str, Scene, Bounds | list[tuple[str, How]], str]] = {
    "a settlement without the fence": (
        settle, "SUCCEED", FENCE, "found.state = 'RUNNING'", zombie, Bounds(1, 0), "succeed",
    ),
    "a reaper that does not look again": (
        reap, "RECLAIM", RECHECK, "WHERE state = 'RUNNING'", overtaken, OVERTAKEN, "taken from a lease that is LIVE",
    ),
    "a mark that does not wait for the claim": (
        reap, "MARK", "  FOR UPDATE SKIP LOCKED\n", "", PAIRS["claim, reap"], Bounds(1, 0), "cleared while it held",
    ),
    "a claim under an expired lease": (
        claim, "CLAIM", "expires_at > clock_timestamp()", "true", PAIRS["claim, reap"], Bounds(1, 0), "an expired lease",
    ),
    "a loss that is not charged": (
        reap, "RECLAIM", "losses = judged.losses + 1", "losses = judged.losses", PAIRS["succeed, reap"], Bounds(0, 0),
        "counted",
    ),
    "a release that forgets who cancelled": (
        settle, "GIVE_BACK", "WHEN found.cancel_requested THEN 'CANCELLED'", "WHEN false THEN 'CANCELLED'",
        PAIRS["release, cancel"], Bounds(1, 0), "claimed after it was cancelled",
    ),
    "a key that makes two tasks": (
        submit, "SUBMIT_ONCE", "WHERE submitted.task_id = :id::uuid", "", PAIRS["submit, submit"], Bounds(0, 0),
        "2 tasks were made under 1 keys",
    ),
}  # fmt: skip


def seed(monkeypatch: pytest.MonkeyPatch, where: ModuleType, name: str, old: str, new: str) -> None:
    text = getattr(where, name).text
    assert old in text
    monkeypatch.setattr(where, name, Statement(text.replace(old, new)))


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found(theatre: Theatre, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    where, name, old, new, scene, bounds, says = BUGS[bug]
    seed(monkeypatch, where, name, old, new)

    if isinstance(bounds, Bounds):
        search: Coroutine[Any, Any, object] = explore(theatre, scene, bounds)
    else:
        search = play(theatre, scene, Prompted(*bounds).choose, Bounds(10, 0))
    with pytest.raises(Violation, match=says) as found:
        theatre.runner.run(search)

    assert steps_of(found.value) <= SHORT


def test_a_lease_is_not_cleared_while_somebody_else_holds_its_task(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep steps over a row that is locked by a settlement which then comes to nothing, as its holder does."""
    steps = [("holder", How.OPEN)] + 6 * [("reaper", How.WHOLE)] + [("holder", How.DIE), ("holder", How.KILL)]
    sound = Prompted(*steps)
    theatre.runner.run(play(theatre, PAIRS["succeed, reap"], sound.choose, Bounds(10, 2)))
    assert not sound.left

    seed(monkeypatch, reap, "CLEAR", IS_EMPTY, "")
    with pytest.raises(Violation, match="RUNNING for ever"):
        theatre.runner.run(play(theatre, PAIRS["succeed, reap"], Prompted(*steps).choose, Bounds(10, 2)))


def test_chance_finds_a_bug_and_tells_it_shortly(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    seed(monkeypatch, settle, "SUCCEED", FENCE, "found.state = 'RUNNING'")

    @quiet(400)
    @given(
        plots(
            tasks=st.just([True]),
            held=st.just(1),
            outcomes=st.just(["succeed"]),
            parts=st.just(["reaper", "rival claims", "holder settles"]),
            faults=st.just(0),
        )
    )
    def holds(plot: Plot) -> None:
        theatre.runner.run(play(theatre, plot.scene, plot.choose(), plot.bounds))

    with pytest.raises(Violation) as found:
        holds()

    print(found.value)
    assert steps_of(found.value) <= SHORT


def steps_of(violation: Violation) -> int:
    return sum(line.strip()[:2].rstrip(".").isdigit() for line in str(violation).splitlines())
