"""Only a witness may accuse: it must have seen a lease unrenewed for that lease's own TTL, without a gap."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from fleet.postgres.reap import LeaseSeen
from fleet.worker.maintenance import Witness

A, B = UUID(int=1), UUID(int=2)
T0 = datetime(2026, 1, 1, tzinfo=UTC)
GAP = timedelta(seconds=5)


def seen(
    lease: UUID = A, *, renewed: float = 0, ttl: float = 10, expired: bool = True, ended: bool = False
) -> LeaseSeen:
    return LeaseSeen(lease, timedelta(seconds=ttl), T0 + timedelta(seconds=renewed), expired, ended)


def looks(witness: Witness, begin: float, end: float, *leases: LeaseSeen, step: float = 5) -> list[list[UUID]]:
    """Read the same leases again and again; return what each reading accused."""
    answers, now = [], begin
    while now <= end:
        answers.append(witness.accuse(leases, now))
        now += step
    return answers


def test_a_lease_is_accused_after_exactly_its_own_ttl_on_the_witness_clock() -> None:
    witness = Witness(GAP)
    assert looks(witness, 100, 105, seen()) == [[], []]
    assert witness.accuse([seen()], 109.9) == []
    assert witness.accuse([seen()], 110.0) == [A]
    assert witness.accuse([seen()], 114.0) == [A]


def test_each_lease_has_its_own_ttl() -> None:
    witness = Witness(GAP)
    assert looks(witness, 0, 10, seen(), seen(B, ttl=5)) == [[], [B], [A, B]]


def test_a_lease_that_was_renewed_begins_again() -> None:
    witness = Witness(GAP)
    looks(witness, 0, 5, seen())
    assert looks(witness, 10, 15, seen(renewed=1)) == [[], []]
    assert witness.accuse([seen(renewed=1)], 20) == [A]


def test_a_lease_that_is_not_expired_by_the_databases_clock_is_never_accused() -> None:
    witness = Witness(GAP)
    assert not any(looks(witness, 0, 100, seen(expired=False)))
    assert witness.accuse([seen()], 105) == [A]


def test_a_gap_in_the_readings_makes_the_witness_begin_again() -> None:
    witness = Witness(GAP)
    looks(witness, 0, 5, seen())
    assert witness.accuse([seen()], 10.001) == []
    assert looks(witness, 15.001, 15.001, seen()) == [[]]
    assert witness.accuse([seen()], 20.0) == []
    assert witness.accuse([seen()], 20.001) == [A]


def test_readings_as_far_apart_as_the_gap_are_none() -> None:
    witness = Witness(GAP)
    assert looks(witness, 0, 10, seen(), step=5) == [[], [], [A]]


def test_the_first_reading_accuses_nobody_however_long_ago_the_lease_expired() -> None:
    assert Witness(GAP).accuse([seen(renewed=-1_000_000)], 1_000_000.0) == []


def test_a_lease_that_has_ended_is_never_accused() -> None:
    assert not any(looks(Witness(GAP), 0, 100, seen(ended=True)))


def test_a_lease_that_vanished_and_came_back_begins_again() -> None:
    witness = Witness(GAP)
    looks(witness, 0, 5, seen())
    assert witness.accuse([seen(B)], 8) == []
    assert witness.accuse([seen(), seen(B)], 12) == []
    assert witness.accuse([seen(), seen(B)], 17) == []
    assert witness.accuse([seen(), seen(B)], 18) == [B]
    assert witness.accuse([seen(), seen(B)], 22) == [A, B]
