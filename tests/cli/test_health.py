"""`fleet health`: 0 only when all that was asked for is well, and it says what is not."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fleet.postgres.database import AsyncConnection
from tests import support
from tests.cli.conftest import Command
from tests.http.running import Running


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


async def test_a_process_is_asked_over_http(
    anywhere: Command, database_url: str, tmp_path: Path, connection: AsyncConnection
) -> None:
    with Running(tmp_path, database_url) as api:
        at = urlsplit(api.address).netloc
        assert (await anywhere("health", "--live", "--at", at)).code == 0
        assert (await anywhere("health", "--ready", "--at", at)).code == 0
        await connection.execute("ALTER SCHEMA fleet RENAME TO away")
        try:
            assert (await anywhere("health", "--live", "--at", at)).code == 0
            outcome = await anywhere("health", "--ready", "--at", at, "-o", "json")
        finally:
            await connection.execute("ALTER SCHEMA away RENAME TO fleet")
        assert outcome.code == 1
        assert "answers 503: " in outcome.json["checks"][0]["detail"]
        assert "db upgrade" in outcome.json["checks"][0]["detail"]


async def test_a_worker_is_asked_where_it_serves_its_metrics(
    anywhere: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await anywhere("health", "--live")).code == 2
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    monkeypatch.setenv("FLEET_METRICS", f"0.0.0.0:{port}")
    outcome = await anywhere("health", "--live", "-o", "json")
    assert outcome.code == 1
    assert f"127.0.0.1:{port} does not answer" in outcome.json["checks"][0]["detail"]
