"""Two actors: every way in which their statements interleave, within bounds, and every single fault at every point.

A schedule is bounded by how often an actor is interrupted that could have gone on, and by its faults. The quick bounds find
every order of whole statements of which one may be left open; FLEET_SIMULATION_EXAMPLES widens them.
"""

from collections import Counter

import pytest

from tests.simulation.actor import How
from tests.simulation.conductor import Bounds
from tests.simulation.explore import EXAMPLES, Prompted, explore
from tests.simulation.play import Scene, play
from tests.simulation.scenes import PAIRS
from tests.simulation.theatre import Theatre

QUICK = [Bounds(switches=1, faults=0)]
DEEP = [Bounds(3, 0), Bounds(1, 1), Bounds(2, 1), Bounds(4, 0), Bounds(0, 2)]


@pytest.mark.fault("Reaper", "reap against complete, renew, claim, cancel in both orders")
@pytest.mark.fault("Submit", "cancel against claim, complete, reap")
@pytest.mark.parametrize("scene", PAIRS.values(), ids=PAIRS.keys())
def test_whatever_interleaves_the_books_balance_and_everything_ends(theatre: Theatre, scene: Scene) -> None:
    taken: Counter[How] = Counter()
    for bounds in DEEP if EXAMPLES else QUICK:
        taken += theatre.runner.run(explore(theatre, scene, bounds, EXAMPLES))

    assert taken[How.OPEN]
    assert taken[How.COMMIT]


@pytest.mark.fault("Network", "commit reply lost at submit, claim, settle, retry, renew, reap, drain")
@pytest.mark.fault("Network", "statement never sent at submit, claim, settle, retry, renew, reap, drain")
@pytest.mark.parametrize("scene", PAIRS.values(), ids=PAIRS.keys())
def test_one_fault_anywhere_loses_nothing(theatre: Theatre, scene: Scene) -> None:
    taken = theatre.runner.run(explore(theatre, scene, Bounds(switches=0, faults=1), EXAMPLES))

    assert all(taken[fault] for fault in (How.LOST, How.UNSENT, How.DIE))


def test_a_drain_finds_what_a_claim_takes_that_its_worker_has_given_up(theatre: Theatre) -> None:
    """The server is still at the claim when the worker, which has lost that connection, drains on another."""
    scene = PAIRS["claim and drain, claim"]
    steps = Prompted(("holder", How.OPEN), ("holder", How.ABANDON), ("holder", How.WHOLE), ("holder", How.COMMIT))

    theatre.runner.run(play(theatre, scene, steps.choose, Bounds(switches=10, faults=1)))

    assert not steps.left
    attempts = theatre.runner.run(theatre.facts())["attempts"]
    assert [(line["attempt"], line["outcome"]) for line in attempts] == [(1, "released")]
