"""Chance chooses who is there, what they do, in which order, and what goes wrong; and shrinks what it finds."""

from collections import Counter

from hypothesis import given

from tests.simulation.actor import How
from tests.simulation.explore import EXAMPLES
from tests.simulation.play import play
from tests.simulation.plot import Plot, plots, quiet
from tests.simulation.theatre import Theatre

QUICK_EXAMPLES = 80


def test_whatever_chance_chooses_the_books_balance_and_everything_ends(theatre: Theatre) -> None:
    taken: Counter[How] = Counter()

    @quiet(EXAMPLES or QUICK_EXAMPLES)
    @given(plots())
    def holds(plot: Plot) -> None:
        taken.update(theatre.runner.run(play(theatre, plot.scene, plot.choose(), plot.bounds)))

    holds()

    rare = {How.KILL, How.ABANDON}
    assert set(How) - set(taken) <= (set() if EXAMPLES else rare)
