from datetime import timedelta

import pytest

from fleet.retry import BackOff, Retry

SECOND = timedelta(seconds=1)
BACKOFF = BackOff(SECOND, 600 * SECOND)


@pytest.mark.parametrize(("failures", "seconds"), [(0, 1), (1, 2), (2, 4), (9, 512), (10, 600), (45, 600)])
def test_the_wait_doubles_with_each_failure_up_to_its_cap(failures: int, seconds: int) -> None:
    assert BACKOFF.delay(failures, 0.5) == seconds * SECOND


@pytest.mark.parametrize("failures", [47, 60, 61, 10_000])
def test_any_number_of_failures_has_a_wait(failures: int) -> None:
    assert BACKOFF.delay(failures, 0.5) == 600 * SECOND
    assert BackOff(20 * SECOND, 12_000 * SECOND).delay(failures, 0.5) == 12_000 * SECOND


@pytest.mark.parametrize("failures", [0, 10])
def test_the_wait_is_spread_by_a_fifth_to_both_sides(failures: int) -> None:
    middle = BACKOFF.delay(failures, 0.5)
    assert BACKOFF.delay(failures, 0.0) == middle * 0.8
    assert BACKOFF.delay(failures, 1.0) == middle * 1.2
    assert BackOff(SECOND, SECOND, jitter=0).delay(failures, 1.0) == SECOND


@pytest.mark.parametrize(("after", "expected"), [
    (None, None), (0, timedelta(0)), (1.5, 1.5 * SECOND), (2, 2 * SECOND), (3 * SECOND, 3 * SECOND),
])  # fmt: skip
def test_a_retry_may_say_after_how_long(after: timedelta | float | None, expected: timedelta | None) -> None:
    assert Retry("later", after=after).after == expected


def test_a_retry_without_a_reason_has_one() -> None:
    assert str(Retry()) == "the handler asked for a retry"
    assert str(Retry("busy")) == "busy"
