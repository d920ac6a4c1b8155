"""The pytest plugin: fixtures whose names begin with `fleet_`. Loaded in every run, it imports nothing before it is used."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from fleet import testing

if TYPE_CHECKING:
    from fleet.app import Fleet
    from fleet.testing.faultpoints import FaultPoints
    from fleet.testing.proxy import Proxy
    from fleet.testing.replicas import Crew
    from fleet.testing.sink import Sink


@pytest.fixture(scope="session")
def fleet_server_url() -> Iterator[str]:
    """The URL of a server on which databases may be created: FLEET_TEST_DATABASE_URL, or an embedded server."""
    with testing.server() as url:
        yield url


@pytest.fixture(scope="session")
def fleet_template(fleet_server_url: str) -> Iterator[str]:
    """The name of a database with the schema, of which each test gets a copy."""
    with testing.template(fleet_server_url) as name:
        yield name


@pytest.fixture
def fleet_database_url(fleet_server_url: str, fleet_template: str) -> Iterator[str]:
    """The URL of a database of this test alone, with the schema and no task."""
    with testing.new_database(fleet_server_url, fleet_template) as url:
        yield url


@pytest.fixture
def fleet_app(fleet_database_url: str) -> Iterator[Callable[..., "Fleet"]]:
    """Point apps to the database of this test, each by a call with the app; `settings=` replaces its own.

    What an async test submits opens connections in its event loop: `async with app:` closes them.
    """
    with ExitStack() as stack:

        def point(app: "Fleet", **options: Any) -> "Fleet":
            return stack.enter_context(testing.Pointed(app, fleet_database_url, **options))

        yield point


@pytest.fixture
def fleet_replicas(fleet_database_url: str) -> Iterator[Callable[..., "Crew"]]:
    """Start replicas on the database of this test, which live until it ends: call it with `"shop:app", 2`."""
    with testing.Replicas(fleet_database_url) as factory:
        yield factory


@pytest.fixture
def fleet_sink(monkeypatch: pytest.MonkeyPatch) -> Iterator["Sink"]:
    """A sink that handlers find, those that run in this process and those of replicas that are started afterwards."""
    with testing.Sink() as sink:
        for name, value in sink.environment.items():
            monkeypatch.setenv(name, value)
        yield sink


@pytest.fixture
def fleet_faultpoints() -> Iterator[Callable[..., "FaultPoints"]]:
    """Arm fault points: call it with `"handler.leave:charge"`, and give the `environment` of what it returns to replicas."""
    with ExitStack() as stack:
        yield lambda *points: stack.enter_context(testing.FaultPoints(*points))


@pytest.fixture
def fleet_proxy(fleet_database_url: str) -> Iterator["Proxy"]:
    """A proxy before the database of this test."""
    with testing.Proxy(fleet_database_url) as proxy:
        yield proxy
