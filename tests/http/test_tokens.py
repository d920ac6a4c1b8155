"""Stored tokens: what each lets in, and for how long one that was revoked still does."""

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from uuid_utils.compat import uuid7

from fleet import Fleet, Settings
from fleet.http import callers
from fleet.http.api import Api
from fleet.http.callers import CACHE_SECONDS, Caller, Callers
from fleet.http.guard import Guard
from fleet.http.problem import Problem
from fleet.http.routes import ROUTES
from fleet.http.server import asgi
from fleet.postgres import token
from fleet.postgres.database import AsyncConnection
from fleet.tokens import Scope, hash_of, new_secret
from tests.http.conftest import client_of
from tests.http.running import Running, environment
from tests.http.shop import shop
from tests.http.steps import failed, problem
from tests.http.test_guard import EVERYWHERE, PATHS
from tests.http.test_probes import NOWHERE
from tests.support import PATIENCE_SECONDS, execute, submit

MASTER = "0123456789abcdef"


async def made(
    connection: AsyncConnection, name: str, *scopes: Scope, expires_in: timedelta | None = None
) -> dict[str, str]:
    """Make a token, and return the header that shows it."""
    secret = new_secret()
    await token.create(
        connection, uuid7(), name, hash_=hash_of(secret), scopes=scopes, expires_in=expires_in, actor="test"
    )
    return showing(secret)


def showing(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
async def locked(app: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    """The API as with --stored-tokens."""
    async with client_of(asgi(app, token=None, stored_tokens=True)) as client:
        yield client


class Clock:
    """A clock that stands still until it is set on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def doorman(app: Fleet, clock: Clock) -> AsyncIterator[Callers]:
    api = Api(app)
    yield Callers(api, Guard(None, stored_tokens=True), clock)
    await api.close()


async def status(doorman: Callers, headers: dict[str, str], scope: Scope = Scope.READ) -> int:
    """Return what a request with these headers is answered: 200 where it is let in."""
    lowered = {name.lower(): value for name, value in headers.items()}
    try:
        await doorman.admit(lowered, scope)
    except Problem as refused:
        return refused.status
    return 200


@pytest.mark.parametrize("scope", [*Scope])
async def test_a_token_opens_what_its_scope_says_and_nothing_else(
    locked: httpx.AsyncClient, connection: AsyncConnection, scope: Scope
) -> None:
    headers = await made(connection, "one", scope)
    for route, path in PATHS:
        answer = await locked.request(route.method, path, headers=headers)
        if route.scope in (scope, None):
            assert answer.status_code in (200, 404, 415), (route, answer.text)
        else:
            told = problem(answer, 403, "insufficient_scope")
            assert told["scope"] == route.scope
            assert answer.headers["WWW-Authenticate"] == f'Bearer error="insufficient_scope", scope="{route.scope}"'
    described = await locked.get("/openapi.json", headers=headers)
    assert described.status_code == (200 if scope is Scope.READ else 403)


def test_what_changes_something_never_takes_the_scope_for_reading() -> None:
    assert all((route.method == "GET") == (route.scope in (Scope.READ, None)) for route in ROUTES)
    assert {route.path for route in ROUTES if route.scope is None} == {"/livez", "/readyz"}
    assert [route.path for route in ROUTES if route.scope is Scope.SUBMIT] == ["/tasks"]


async def test_a_token_that_is_unknown_expired_or_revoked_is_refused(
    locked: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    revoked, expired = [await made(connection, name, *Scope) for name in ("revoked", "expired")]
    await token.revoke(connection, token_id=None, name="revoked", actor="test")
    await connection.execute("UPDATE fleet.api_token SET expires_at = clock_timestamp() WHERE name = 'expired'")
    for headers in (showing(new_secret()), showing("no secret of ours"), revoked, expired):
        answer = await locked.get("/tasks", headers=headers)
        problem(answer, 401, "no_token")
        assert answer.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    answer = await locked.get("/tasks")
    problem(answer, 401, "no_token")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_the_environments_token_has_all_scopes_beside_the_stored_ones(
    app: Fleet, connection: AsyncConnection
) -> None:
    stored = await made(connection, "reader", Scope.READ)
    async with client_of(asgi(app, token=MASTER)) as api:
        for headers, allowed in [(showing(MASTER), 202), (stored, 403)]:
            assert (await api.get("/tasks", headers=headers)).status_code == 200
            answer = await api.post("/tasks", headers=headers, json={"name": "echo"})
            assert answer.status_code == allowed


async def test_what_was_done_is_on_record_under_the_tokens_name(app: Fleet, connection: AsyncConnection) -> None:
    headers = await made(connection, "night-shift", *Scope)
    await execute(connection, "DELETE FROM fleet.audit")
    (dead,) = await failed(connection)
    task_id = await submit(connection)
    calls: list[tuple[str, Any]] = [
        (f"/tasks/{task_id}/cancel", None),
        ("/dead/requeue", {"seen": [{"id": str(dead), "attempt": 1}]}),
        ("/queues/default/pause", None),
        ("/queues/default/resume", None),
    ]
    async with client_of(asgi(app, token=MASTER)) as api:
        for path, body in calls:
            assert (await api.post(path, headers=headers, json=body)).status_code == 200, path
        assert (await api.post("/queues/default/pause", headers=showing(MASTER))).status_code == 200
    rows = await execute(connection, "SELECT actor, action FROM fleet.audit ORDER BY id")
    assert [row[1] for row in rows] == ["cancel", "requeue", "pause", "resume", "pause"]
    assert [row[0] for row in rows] == ["night-shift"] * 4 + ["http"]


async def test_a_revoked_token_is_let_in_no_longer_than_it_is_remembered(
    doorman: Callers, clock: Clock, connection: AsyncConnection
) -> None:
    headers = await made(connection, "ci", Scope.READ)
    assert await status(doorman, headers) == 200
    await token.revoke(connection, token_id=None, name="ci", actor="test")
    clock.now += CACHE_SECONDS - 0.001
    assert await status(doorman, headers) == 200
    clock.now += 0.001
    assert await status(doorman, headers) == 401


async def test_a_token_is_never_remembered_beyond_its_end(
    doorman: Callers, clock: Clock, connection: AsyncConnection
) -> None:
    headers = await made(connection, "ci", Scope.READ, expires_in=timedelta(hours=1))
    await connection.execute("UPDATE fleet.api_token SET expires_at = clock_timestamp() + interval '4 seconds'")
    assert await status(doorman, headers) == 200
    clock.now += 4
    await connection.execute("UPDATE fleet.api_token SET expires_at = clock_timestamp()")
    assert await status(doorman, headers) == 401


async def test_an_unknown_token_is_asked_for_once_and_good_soon_after_it_was_made(
    doorman: Callers, clock: Clock, connection: AsyncConnection
) -> None:
    secret = new_secret()
    assert await status(doorman, showing(secret)) == 401
    await token.create(
        connection, uuid7(), "late", hash_=hash_of(secret), scopes=["read"], expires_in=None, actor="test"
    )
    assert await status(doorman, showing(secret)) == 401
    clock.now += CACHE_SECONDS
    assert await status(doorman, showing(secret)) == 200


async def test_only_so_many_tokens_are_remembered(
    doorman: Callers, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "CACHE_MAX", 3)
    first = await made(connection, "ci", Scope.READ)
    assert await status(doorman, first) == 200
    await token.revoke(connection, token_id=None, name="ci", actor="test")
    for _ in range(2):
        assert await status(doorman, showing(new_secret())) == 401
    assert await status(doorman, first) == 200, "three are remembered"
    assert await status(doorman, showing(new_secret())) == 401
    assert await status(doorman, first) == 401, "and no fourth"


async def test_the_caller_is_called_like_the_token(doorman: Callers, connection: AsyncConnection) -> None:
    headers = await made(connection, "ci", Scope.READ, Scope.SUBMIT)
    caller = await doorman.admit({"authorization": headers["Authorization"]}, Scope.SUBMIT)
    assert caller == Caller("ci", frozenset({Scope.READ, Scope.SUBMIT}))


async def test_where_the_database_cannot_be_reached_nobody_is_let_in_and_no_token_is_called_wrong(
    settings: Settings,
) -> None:
    quick = settings.changed(lock_timeout=timedelta(seconds=0.1), statement_timeout=timedelta(seconds=0.3))
    async with client_of(asgi(shop(NOWHERE, quick), token=MASTER)) as api:
        for path in ("/tasks", "/openapi.json"):
            problem(await api.get(path, headers=showing(new_secret())), 503, "database_unreachable")
            problem(await api.get(path, headers=showing("no secret of ours")), 401, "no_token")
            problem(await api.get(path), 401, "no_token")
        assert (await api.get("/openapi.json", headers=showing(MASTER))).status_code == 200


@pytest.mark.parametrize("trouble", ["LOCK TABLE fleet.api_token", "ALTER TABLE fleet.api_token RENAME TO gone"])
async def test_a_look_up_that_fails_lets_nobody_in_and_calls_no_token_wrong(
    locked: httpx.AsyncClient, connection: AsyncConnection, other: AsyncConnection, trouble: str
) -> None:
    headers = await made(connection, "ci", *Scope)
    async with other.transaction(force_rollback=True):
        await other.execute(trouble.encode())
        answer = await locked.get("/queues", headers=headers)
    assert answer.status_code == 503, answer.text
    assert (await locked.get("/queues", headers=headers)).status_code == 200


def fleet(database_url: str, *arguments: str) -> str:
    """Run a command to its good end, and return its stdout."""
    command = [sys.executable, "-m", "fleet", "token", *arguments]
    done = subprocess.run(command, env=environment(database_url), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_server_on_the_network_starts_with_stored_tokens_alone(database_url: str, tmp_path: Path) -> None:
    told = json.loads(fleet(database_url, "create", "ci", "--scope=read", "-ojson"))
    with (
        socket.create_server((EVERYWHERE, 0)) as listening,
        Running(tmp_path, database_url, "--stored-tokens", listening=listening) as running,
    ):
        running.wait_for("api listening")
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with httpx.Client(base_url=address, trust_env=False, timeout=PATIENCE_SECONDS) as client:
            assert client.get("/tasks").status_code == 401
            assert client.get("/tasks", headers=showing(told["secret"])).status_code == 200
    assert told["secret"] not in running.words


def test_a_server_on_loopback_asks_for_stored_tokens_where_it_is_told_to(database_url: str, tmp_path: Path) -> None:
    secret = fleet(database_url, "create", "ci", "--scope=submit").strip()
    with Running(tmp_path, database_url, "--stored-tokens") as running:
        assert running.call("POST", "/tasks", json={"name": "echo"}).status_code == 401
        assert running.call("POST", "/tasks", json={"name": "echo"}, headers=showing(secret)).status_code == 202
        assert running.call("GET", "/tasks", headers=showing(secret)).status_code == 403
