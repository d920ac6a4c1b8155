"""`fleet health`: 0 only when all that was asked for is well, and it says what is not."""

from fleet.postgres.database import AsyncConnection
from tests import support
from tests.cli.conftest import Command


async def test_a_database_with_the_schema_is_healthy(fleet: Command) -> None:
    outcome = await fleet("health")
    assert outcome.code == 0
    assert [line[:2] for line in outcome.lines] == [["CHECK", "OK"], ["database", "yes"], ["schema", "yes"]]


async def test_a_worker_counts_only_while_its_lease_is_good(fleet: Command, connection: AsyncConnection) -> None:
    assert (await fleet("health", "--worker")).code == 1
    lease = await support.new_lease(connection)
    healthy = await fleet("health", "--worker", "-o", "json")
    assert healthy.code == 0
    assert healthy.json["healthy"] is True
    await support.expire_lease(connection, lease)
    outcome = await fleet("health", "--worker", "-o", "json")
    assert outcome.code == 1
    assert outcome.json["checks"][-1] == {"name": "worker", "ok": False, "detail": "0 with a good lease"}


async def test_what_is_wrong_is_said(anywhere: Command, empty_url: str) -> None:
    outcome = await anywhere("health", "--database-url", "postgresql://127.0.0.1:1/x", "-o", "json")
    assert outcome.code == 1
    assert "cannot be reached" in outcome.json["checks"][0]["detail"]
    outcome = await anywhere("health", "--database-url", empty_url)
    assert outcome.code == 1
    assert outcome.lines[2][:2] == ["schema", "no"]
