"""`fleet db`: the schema is made, checked and printed."""

import psycopg
import pytest

from fleet.postgres.database import AsyncConnection
from tests.cli.conftest import Command
from tests.support import execute, new_lease


async def test_upgrade_makes_the_schema_and_may_be_repeated(anywhere: Command, empty_url: str) -> None:
    where = ("--database-url", empty_url)
    first = await anywhere("db", "upgrade", "-o", "json", *where)
    assert first.code == 0
    assert first.json["revision"]
    again = await anywhere("db", "upgrade", *where)
    assert (again.code, again.out) == (0, "")
    assert first.json["revision"] in again.err
    assert (await anywhere("db", "check", "-o", "json", *where)).json == first.json


@pytest.mark.fault("Deploy", "a binary older than the schema")
@pytest.mark.usefixtures("later_schema")
async def test_a_schema_of_a_later_version_is_left_alone(fleet: Command) -> None:
    for verb in ("check", "upgrade"):
        outcome = await fleet("db", verb)
        assert (outcome.code, outcome.out) == (4, "")
        assert "Upgrade pgfleet" in outcome.err


async def test_sql_needs_no_database_and_makes_the_schema(anywhere: Command, empty_url: str) -> None:
    printed = await anywhere("db", "sql")
    assert printed.code == 0
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(printed.out.encode())
    assert (await anywhere("db", "check", "--database-url", empty_url)).code == 0


async def test_grants_needs_no_database_and_names_the_roles_as_it_is_told(anywhere: Command) -> None:
    printed = await anywhere("db", "grants", "--worker", "runners")
    assert (printed.code, printed.err) == (0, "")
    assert 'TO "runners"' in printed.out
    assert "fleet_worker" not in printed.out
    for role in ("fleet_owner", "fleet_migrator", "fleet_api", "fleet_reader"):
        assert f'"{role}"' in printed.out


@pytest.mark.parametrize(
    "names", [("--worker", "a b"), ("--worker", 'x"; --'), ("--api", ""), ("--api", "fleet_worker")]
)
async def test_grants_refuses_what_cannot_name_five_roles(anywhere: Command, names: tuple[str, str]) -> None:
    outcome = await anywhere("db", "grants", *names)
    assert (outcome.code, outcome.out) == (2, "")


@pytest.mark.usefixtures("later_schema")
async def test_nothing_is_written_where_the_schema_does_not_fit(
    fleet: Command, shop: str, connection: AsyncConnection
) -> None:
    lease = await new_lease(connection, worker="live", queues=["sums"])
    for words in (
        "queue pause sums",
        "worker drain live",
        f"task submit add {{}} --app {shop}",
        "dead discard --all --yes",
    ):
        outcome = await fleet(*words.split())
        assert outcome.code == 4, words
        assert "Upgrade pgfleet" in outcome.err
    assert await execute(connection, "SELECT id, state FROM fleet.lease") == [(lease.id, "LIVE")]
    assert await execute(connection, "SELECT paused FROM fleet.queue") == [(False,)]
    assert await execute(connection, "SELECT FROM fleet.task") == []
