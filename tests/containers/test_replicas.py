"""Replicas that are containers on a private network, with PostgreSQL in a container: the same bodies as for processes."""

from collections.abc import Iterator

import pytest
from testcontainers.community.postgres import PostgresContainer
from testcontainers.core.network import Network

from fleet.errors import ConfigurationError
from fleet.postgres.scratch import new_database
from fleet.task import State
from fleet.testing import kill_one_replica, template
from fleet.testing.replicas import replicas
from tests.testing import bodies
from tests.testing.bodies import APP, FLAGS, Start

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]  # the first one builds the image


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with Network() as network, PostgresContainer("postgres:15", driver=None).with_network(network) as running:
        yield running.get_connection_url()


@pytest.fixture(scope="module")
def template_in_container(server: str) -> Iterator[str]:
    with template(server) as name:
        yield name


@pytest.fixture
def url(server: str, template_in_container: str) -> Iterator[str]:
    with new_database(server, template_in_container) as url:
        yield url


@pytest.fixture
def start(url: str) -> Start:
    return lambda count, environment: replicas(APP, count, url, driver="container", environment=environment)


@pytest.mark.fault("Death", "SIGKILL after the effect, before the settlement")
@FLAGS
def test_a_killed_container_loses_nothing_and_repeats_only_what_may_be(start: Start, url: str, once: bool) -> None:
    bodies.killed(start, url, once=once)


@pytest.mark.fault("Stall", "container pause")
@FLAGS
def test_a_container_paused_beyond_its_lease_is_refused(start: Start, url: str, once: bool) -> None:
    bodies.paused(start, url, once=once)


@pytest.mark.fault("Network", "a partition longer than the TTL")
@FLAGS
def test_a_container_cut_off_beyond_its_lease_is_refused(start: Start, url: str, once: bool) -> None:
    bodies.partitioned(start, url, once=once)


def test_a_drained_container_ends_what_it_runs_and_leaves_the_rest_to_others(start: Start, url: str) -> None:
    bodies.drained(start, url)


def test_a_restarted_container_works_under_a_new_lease(start: Start, url: str) -> None:
    bodies.restarted(start, url)


def test_one_call_kills_the_container_that_is_inside_a_handler(url: str) -> None:
    killed = kill_one_replica(APP, "charge", arguments={"order": 7}, database_url=url, driver="container")
    assert (killed.state, killed.failure_code, killed.starts) == (State.FAILED, "lease_expired", 1)
    assert [effect.args for effect in killed.effects] == [{"order": 7}]
    assert "taken from the dead" in killed.told


def test_replicas_in_containers_run_without_rights(start: Start) -> None:
    with start(1, {}) as crew:
        user = crew[0]._container.exec_run(["id", "-u"]).output  # type: ignore[attr-defined]
        assert int(user) == 10001


def test_a_database_outside_any_container_is_refused() -> None:
    with (
        pytest.raises(ConfigurationError, match="no container publishes port 1"),
        replicas(APP, 1, "postgresql://localhost:1/x", driver="container"),
    ):
        pytest.fail("it did start")
