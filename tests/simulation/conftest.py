"""The house is opened once: thousands of schedules are played in it."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from fleet.postgres.scratch import new_database
from fleet.worker import settler
from tests.simulation.theatre import Theatre


@pytest.fixture(scope="session")
def house(server_url: str, template: str) -> Iterator[Theatre]:
    with new_database(server_url, template) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            name = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
        theatre = Theatre(url)
        with theatre.runner:
            theatre.runner.run(theatre.open())
            yield theatre
            theatre.runner.run(theatre.close())


@pytest.fixture
def theatre(house: Theatre, monkeypatch: pytest.MonkeyPatch) -> Theatre:
    """The house, where nobody waits for time to pass: who finds a row busy asks again when it is its turn."""
    monkeypatch.setattr(settler, "BUSY_SECONDS", 0)
    return house
