from datetime import timedelta
from uuid import UUID

import pytest

from fleet.lease import Lease, Tenure

TENURE = Tenure.granted(100.0, timedelta(seconds=30), timedelta(seconds=6))


@pytest.mark.parametrize(("now", "remaining"), [(100.0, 24.0), (123.5, 0.5), (124.0, 0.0), (130.0, -6.0)])
def test_the_holder_gives_up_a_margin_before_the_ttl_has_passed_since_it_sent(now: float, remaining: float) -> None:
    assert TENURE.remaining(now) == remaining


def test_nothing_is_left_at_the_very_moment() -> None:
    assert not TENURE.remaining(124.0) > 0
    assert TENURE.remaining(123.999) > 0


def test_two_leases_are_never_the_same_even_if_all_they_say_is() -> None:
    one, two = (Lease(UUID(int=1), "worker", timedelta(seconds=1)) for _ in range(2))
    assert one != two
    assert len({one, two}) == 2
