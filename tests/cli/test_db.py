"""`fleet db`: the schema is made, checked and printed."""

from datetime import timedelta

import psycopg
import pytest

from fleet.errors import UpgradeRefused
from fleet.postgres import migrate
from fleet.postgres.database import AsyncConnection, Database
from fleet.postgres.tables import metadata
from tests.cli.conftest import Command
from tests.support import execute, new_lease, submit


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


async def test_nothing_is_written_where_the_schema_does_not_fit(
    fleet: Command, shop: str, connection: AsyncConnection, request: pytest.FixtureRequest
) -> None:
    lease = await new_lease(connection, worker="live", queues=["sums"], ttl=timedelta(minutes=1))
    request.getfixturevalue("later_schema")
    for words in (
        "queue pause sums",
        "worker drain live",
        f'task submit add {{"a":1}} --app {shop}',
        "dead discard --all --yes",
    ):
        outcome = await fleet(*words.split())
        assert outcome.code == 4, words
        assert "Upgrade pgfleet" in outcome.err
    assert await execute(connection, "SELECT id, state FROM fleet.lease") == [(lease.id, "LIVE")]
    assert await execute(connection, "SELECT paused FROM fleet.queue") == [(False,)]
    assert await execute(connection, "SELECT FROM fleet.task") == []


async def test_size_tells_of_every_table_and_what_could_be_pruned(fleet: Command, connection: AsyncConnection) -> None:
    await new_lease(connection, queues=["default", "kept"], ttl=timedelta(minutes=1))
    assert (await fleet("queue", "retain", "kept", "30d")).code == 0
    for queue in ("default", "default", "kept"):
        await submit(connection, queue=queue)
    await execute(
        connection,
        "UPDATE fleet.task SET state = 'SUCCEEDED', finished_at = '2020-01-01T00:00:00Z' WHERE queue = 'default'",
    )
    await execute(
        connection,
        "UPDATE fleet.task SET state = 'CANCELLED', finished_at = now() - interval '8 days' WHERE queue = 'kept'",
    )
    await submit(connection)
    await connection.execute("ANALYZE fleet.task")
    told = (await fleet("db", "size", "-o", "json")).json
    assert (told["prunable"], told["prunable_more"], told["rows_are_estimates"]) == (2, False, True)
    assert told["oldest_finished_at"].startswith("2020-01-01T00:00:00")
    assert told["retention_seconds"] == 7 * 86_400
    tables = {each["name"]: each for each in told["tables"]}
    assert set(tables) == {table.name for table in metadata.tables.values()} | {"fleet_alembic_version"}
    assert tables["task"]["rows"] == 4
    assert tables["task"]["table_bytes"] >= 8192
    assert tables["task"]["index_bytes"] >= 8192
    table = await fleet("db", "size")
    assert table.lines[0] == ["TABLE", "ROWS (ESTIMATE)", "DEAD", "DATA", "INDEXES", "TOAST"]
    assert "could be pruned now: 2" in table.err
    assert "2020-01-01 00:00:00Z" in table.err


async def test_an_upgrade_that_workers_stand_in_the_way_of_ends_with_6_and_force_says_whom_it_went_over(
    fleet: Command, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await new_lease(connection, worker="old", ttl=timedelta(minutes=1))
    misfit = migrate.Misfit(lease.id, "old", "host", "0.1", 1, 1)

    def upgrade(database: Database, *, force: bool) -> list[migrate.Misfit]:
        if not force:
            raise UpgradeRefused(f"schema 2 does not suit {misfit}")
        return [misfit]

    monkeypatch.setattr(migrate, "upgrade", upgrade)
    refused = await fleet("db", "upgrade")
    assert (refused.code, refused.out) == (6, "")
    assert "does not suit old on host (pgfleet 0.1, schemas 1 to 1)" in refused.err
    forced = await fleet("db", "upgrade", "--force")
    assert forced.code == 0
    assert "went on over old on host (pgfleet 0.1, schemas 1 to 1)" in forced.err
