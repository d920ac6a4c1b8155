"""Replicas that are processes, stopped and cut off for longer than their lease; the quick rest is in tests/testing."""

import pytest

from fleet.testing.replicas import replicas
from tests.testing import bodies
from tests.testing.bodies import APP, FLAGS, Start


@pytest.fixture
def start(database_url: str) -> Start:
    return lambda count, environment: replicas(APP, count, database_url, environment=environment)


@pytest.mark.fault("Stall", "SIGSTOP for longer than the TTL, then SIGCONT")
@FLAGS
def test_a_replica_paused_beyond_its_lease_is_refused(start: Start, database_url: str, once: bool) -> None:
    bodies.paused(start, database_url, once=once)


@pytest.mark.fault("Network", "a partition longer than the TTL")
@FLAGS
def test_a_replica_cut_off_beyond_its_lease_is_refused(start: Start, database_url: str, once: bool) -> None:
    bodies.partitioned(start, database_url, once=once)


def test_a_restarted_replica_works_under_a_new_lease(start: Start, database_url: str) -> None:
    bodies.restarted(start, database_url)
