"""`fleet worker list` and `drain`."""

from uuid import uuid4

from fleet.postgres.database import AsyncConnection
from tests import support
from tests.cli.conftest import Command


async def test_list_shows_who_works_and_until_when(fleet: Command, connection: AsyncConnection) -> None:
    nobody = await fleet("worker", "list")
    assert (nobody.code, nobody.out) == (0, "")
    assert "no worker" in nobody.err
    lease = await support.new_lease(connection, worker="adder", queues=["default", "sums"])
    await support.submit(connection)
    await support.claim_some(connection, lease)
    (row,) = (await fleet("worker", "list", "-o", "json")).json
    assert (row["id"], row["worker"], row["running"], row["slots"]) == (str(lease.id), "adder", 1, 8)
    assert 0 < row["expires_in_seconds"] <= 2
    headings, cells = (await fleet("worker", "list")).lines
    assert dict(zip(headings, cells, strict=True)) | {"LEASE": ""} == {
        "ID": str(lease.id),
        "WORKER": "adder",
        "HOST": "host",
        "VERSION": "test",
        "STATE": "LIVE",
        "RUNNING": "1/8",
        "QUEUES": "default, sums",
        "LEASE": "",
    }
    await support.expire_lease(connection, lease)
    assert "expired" in (await fleet("worker", "list")).out


async def test_list_leaves_out_what_is_over_unless_asked(fleet: Command, connection: AsyncConnection) -> None:
    lease = await support.new_lease(connection)
    await support.execute(connection, "UPDATE fleet.lease SET state = 'REAPED'")
    assert (await fleet("worker", "list", "-o", "json")).json == []
    (row,) = (await fleet("worker", "list", "--all", "-o", "json")).json
    assert row["id"] == str(lease.id)
    assert (await fleet("worker", "list", "--all")).lines[1][-1] == "over"
    await support.new_lease(connection)
    assert "--limit" in (await fleet("worker", "list", "--all", "--limit", 1)).err


async def test_drain_by_id_or_by_name_may_be_repeated(fleet: Command, connection: AsyncConnection) -> None:
    lease = await support.new_lease(connection, worker="adder")
    drained = await fleet("worker", "drain", lease.id, "-o", "json")
    assert (drained.code, drained.json) == (0, [{"id": str(lease.id), "worker": "adder", "changed": True}])
    again = await fleet("worker", "drain", "adder")
    assert (again.code, again.out) == (0, "")
    assert "draining already" in again.err
    assert (await fleet("worker", "list", "-o", "json")).json[0]["state"] == "DRAINING"


async def test_a_name_that_several_have_drains_nobody_unasked(fleet: Command, connection: AsyncConnection) -> None:
    leases = [await support.new_lease(connection, worker="worker-1") for _ in range(2)]
    refused = await fleet("worker", "drain", "worker-1")
    assert refused.code == 6
    assert all(str(lease.id) in refused.err for lease in leases)
    assert (await fleet("worker", "drain", "worker-1", "--all")).code == 0
    states = await support.execute(connection, "SELECT DISTINCT state FROM fleet.lease")
    assert states == [("DRAINING",)]


async def test_draining_nobody_is_refused(fleet: Command, connection: AsyncConnection) -> None:
    assert (await fleet("worker", "drain", uuid4())).code == 5
    assert (await fleet("worker", "drain", "nobody")).code == 5
    lease = await support.new_lease(connection)
    await support.execute(connection, "UPDATE fleet.lease SET state = 'RELEASED'")
    late = await fleet("worker", "drain", lease.id)
    assert late.code == 6
    assert "RELEASED" in late.err
