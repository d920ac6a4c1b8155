"""Replicas that are processes, stopped and cut off for longer than their lease; the quick rest is in tests/testing."""

import pytest

from fleet.demo.tasks import PACE, analyze, app
from fleet.testing.pointed import Pointed
from fleet.testing.replicas import replicas
from tests.testing import bodies
from tests.testing.bodies import APP, FLAGS, Start
from tests.testing.rolling import rolled


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


@pytest.mark.fault("Deploy", "a rolling restart under load")
def test_a_rolling_restart_loses_nothing_charges_nothing_and_never_pauses(database_url: str) -> None:
    with (
        Pointed(app, database_url),
        replicas("fleet.demo:app", 3, database_url, environment={PACE: "0.1"}, ttl_seconds=6) as crew,
    ):

        def roll() -> None:
            for index in range(len(crew)):
                assert crew.drain(index) == 0
                crew.restart(index)

        rolled(database_url, lambda number: analyze.submit_sync(text=f"text {number}").id, roll, workers=3)
