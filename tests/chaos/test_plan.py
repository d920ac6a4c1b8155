"""The plan of the long run."""

import pytest

from tests.chaos.nemesis import DEEDS
from tests.chaos.plan import RHYTHMS, Quota, plan


def test_a_seed_makes_one_plan() -> None:
    assert plan(7, 600) == plan(7, 600) != plan(8, 600)


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_hold_more_than_enough_of_what_must_happen(seed: int) -> None:
    faults = [each.fault for each in plan(seed, 600)]
    quota = Quota()
    assert faults.count("kill") >= 1.5 * quota.kills
    assert faults.count("pause past the TTL") >= 1.5 * quota.long_pauses
    assert faults.count("crash") >= 1.5 * quota.restarts
    assert faults.count("cut a submission") + faults.count("cut after") >= 3 * quota.cut_replies


def test_every_fault_of_the_plan_can_be_done() -> None:
    assert DEEDS.keys() == RHYTHMS.keys()


def test_a_shorter_run_owes_less() -> None:
    assert Quota().of(60) == Quota(2, 0, 0, 2)
    assert Quota().of(1200) == Quota()
