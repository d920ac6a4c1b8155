"""Who is let in."""

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from fleet import Fleet
from fleet.cli import main
from fleet.errors import ConfigurationError
from fleet.http.guard import LOOPBACK_NAMES, guard_for, is_loopback
from fleet.http.routes import ROUTES
from fleet.http.server import asgi
from tests.http.conftest import client_of
from tests.http.running import Running
from tests.http.steps import problem

EVERYWHERE = "0.0.0.0"  # noqa: S104 - it must not be served without a token
TOKEN = "correct horse battery staple".replace(" ", "-")
PATHS = [
    (route, route.path.replace("{id}", "01990000-0000-7000-8000-000000000000").replace("{name}", "x"))
    for route in ROUTES
]


@pytest.fixture
async def loopback(app: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    """The API as on a loopback address."""
    async with client_of(asgi(app, token=None, hosts=LOOPBACK_NAMES)) as client:
        yield client


@pytest.fixture
async def locked(app: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    """The API behind a token."""
    async with client_of(asgi(app, token=TOKEN)) as client:
        yield client


@pytest.mark.parametrize("path", ["/tasks", "/openapi.json", "/livez"])
async def test_a_page_that_calls_us_by_its_own_name_is_not_answered(loopback: httpx.AsyncClient, path: str) -> None:
    for name in (
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::2]",
        "localhost:x",
    ):
        problem(await loopback.get(path, headers={"Host": name}), 421, "wrong_host")
    for name in ("localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080"):
        assert (await loopback.get(path, headers={"Host": name})).status_code == 200, name


async def test_further_names_are_answered_to_where_they_were_given_in_any_case(app: Fleet) -> None:
    async with client_of(asgi(app, token=None, hosts=["Shop.Example"])) as api:
        assert (await api.get("/tasks", headers={"Host": "shop.example:80"})).status_code == 200
        problem(await api.get("/tasks", headers={"Host": "localhost"}), 421, "wrong_host")


async def test_pages_of_other_sites_are_not_answered(loopback: httpx.AsyncClient) -> None:
    others = ("http://evil.example", "null", "", "http://[", "http://127.0.0.1:81", "file://", "127.0.0.1:80", "x")
    for method, path in [("GET", "/tasks"), ("POST", "/tasks"), ("GET", "/openapi.json"), ("GET", "/livez")]:
        for origin in others:
            headers = {"Host": "127.0.0.1:80", "Origin": origin}
            answer = await loopback.request(method, path, headers=headers, json={"name": "echo"})
            problem(answer, 403, "wrong_origin")


async def test_pages_of_our_own_are_answered(loopback: httpx.AsyncClient) -> None:
    headers = {"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:8080"}
    assert (await loopback.post("/tasks", headers=headers, json={"name": "echo"})).status_code == 202


async def test_a_page_without_a_site_is_no_page_of_ours_where_the_host_is_empty(api: httpx.AsyncClient) -> None:
    problem(await api.get("/tasks", headers={"Host": "", "Origin": "null"}), 403, "wrong_origin")


async def test_every_route_but_the_probes_needs_the_token(locked: httpx.AsyncClient) -> None:
    for route, path in PATHS:
        answer = await locked.request(route.method, path)
        if path in ("/livez", "/readyz"):
            assert answer.status_code == 200
        else:
            told = problem(answer, 401, "no_token")
            assert TOKEN not in str(told)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert problem(await locked.get("/openapi.json"), 401, "no_token")


async def test_every_route_answers_whoever_has_the_token(locked: httpx.AsyncClient) -> None:
    for route, path in PATHS:
        answer = await locked.request(route.method, path, headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code in (200, 404, 415), (route, answer.text)
    assert (await locked.get("/openapi.json", headers={"Authorization": f"bearer {TOKEN}"})).status_code == 200


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (f"Bearer {TOKEN}", 200), (f"bearer {TOKEN}", 200), (f"BEARER  {TOKEN} ", 200), (TOKEN, 401), (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401), (f"Bearer {TOKEN[:-1]}", 401), ("Bearer", 401), ("Bearer ", 401), ("", 401),
        (f"Bearer{TOKEN}", 401), (f"Bearer {TOKEN.upper()}", 401), (f"Bearer {TOKEN},{TOKEN}", 401), ("Bearer \xfc", 401),
    ],
)  # fmt: skip
async def test_only_the_whole_token_lets_in(locked: httpx.AsyncClient, given: str, status: int) -> None:
    assert (await locked.get("/tasks", headers={b"Authorization": given.encode("latin-1")})).status_code == status


@pytest.mark.parametrize(
    "token", ["", "x" * 15, "with spaces in it, long", "ümläut-ümläut-ümläut", "line\nbreak-line-break"]
)
def test_a_token_that_cannot_keep_anybody_out_is_refused(app: Fleet, token: str) -> None:
    with pytest.raises(ConfigurationError, match="16 or more") as refused:
        asgi(app, token=token)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize("address", [EVERYWHERE, "::", "192.0.2.1", "::ffff:192.0.2.1", "/run/fleet.sock"])
def test_an_address_that_others_can_reach_needs_a_token(address: str) -> None:
    assert not is_loopback(address)
    with pytest.raises(ConfigurationError, match="FLEET_API_TOKEN"):
        guard_for(address, None, [])
    guard_for(address, TOKEN, []).admit({"host": "any"})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_a_loopback_address_needs_none_and_is_answered_to(address: str) -> None:
    host = f"[{address}]:80" if ":" in address else f"{address}:80"
    guard_for(address, None, []).admit({"host": host})


def run(*arguments: str, **environment: str | None) -> Result:
    """Call `fleet api run`, which must end by itself."""
    nothing = {name: None for name in os.environ if name.startswith(("FLEET_", "PG"))}
    return CliRunner().invoke(
        main, ["api", "run", "tests.http.shop:app", "--port=0", *arguments], env=nothing | environment
    )


def test_a_server_refuses_to_start_open_to_the_network(database_url: str) -> None:
    result = run(f"--host={EVERYWHERE}", FLEET_DATABASE_URL=database_url)
    assert result.exit_code == 2
    assert "0.0.0.0 can be reached from other machines, and no token was given: set FLEET_API_TOKEN" in result.stderr


def test_a_server_refuses_to_start_with_a_short_token(database_url: str) -> None:
    result = run(FLEET_DATABASE_URL=database_url, FLEET_API_TOKEN="secret-7")
    assert result.exit_code == 2
    assert "secrets.token_urlsafe" in result.stderr
    assert "secret-7" not in result.output


def test_a_server_refuses_to_start_with_a_token_file_that_is_empty(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    result = run(FLEET_DATABASE_URL=database_url, FLEET_API_TOKEN_FILE=str(tmp_path / "token"))
    assert result.exit_code == 2
    assert "which is empty" in result.stderr


def test_a_server_on_the_network_asks_for_the_token_of_its_file(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with (
        socket.create_server((EVERYWHERE, 0)) as listening,
        Running(tmp_path, database_url, listening=listening, FLEET_API_TOKEN_FILE=str(tmp_path / "token")) as running,
    ):
        running.wait_for("api listening")
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with httpx.Client(base_url=address, trust_env=False) as client:
            assert client.get("/tasks").status_code == 401
            assert client.get("/tasks", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
            assert client.get("/livez", headers={"Host": "any.example"}).status_code == 200
    assert TOKEN not in running.words


def test_a_server_answers_to_the_names_it_was_given(database_url: str, tmp_path: Path) -> None:
    with Running(tmp_path, database_url, "--allow-host=Shop.example") as running:
        for host, status in [("shop.example", 200), ("127.0.0.1", 200), ("evil.example", 421)]:
            assert running.call("GET", "/livez", headers={"Host": host}).status_code == status
