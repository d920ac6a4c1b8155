"""Bodies of every kind: refused in words, or taken without loss."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fleet import Fleet, Settings
from fleet.http.server import asgi
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from tests.http.conftest import client_of
from tests.http.running import Running, received
from tests.http.shop import shop
from tests.http.steps import ended, problem
from tests.support import PATIENCE_SECONDS, eventually_sync

JSON = {"Content-Type": "application/json"}
LIMIT = 4 * 1000  # of the servers in this process that take arguments of 1000 bytes
HEAD = b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


async def post(api: httpx.AsyncClient, body: Any, headers: dict[str, str] = JSON) -> httpx.Response:
    return await api.post("/tasks", content=body, headers=headers)


def echo(value: bytes) -> bytes:
    return b'{"name":"echo","args":{"value":' + value + b"}}"


NO_JSON = [
    b"", b" ", b"{", b"{}}", b"{'a':1}", b"nul", b"\xff\xfe{\x00}\x00", b'\xef\xbb\xbf{"name":"echo"}', b'{"name":"a",}',
    echo(b'"\xff"'), echo(b'"\xed\xa0\x80"'), echo(b'"\\ud800"'), echo(b'"\\udc00\\ud800"'), echo(b'"\n"'),
    echo(b"01"), echo(b"+1"), echo(b".5"), echo(b"0x10"), echo(b"9" * 5000), echo(b"-" + b"9" * 5000),
    echo(b"[" * 250 + b"]" * 250), echo(b"[" * 100_000 + b"]" * 100_000), b"[" * 100_000, b'{"a":' * 100_000,
]  # fmt: skip
INVALID = [
    b"[]", b"[{}]", b"null", b"7", b'"text"', b"{}", b'{"name":null}', b'{"name":7}', b'{"name":{}}', b'{"args":{}}',
    echo(b"NaN"), echo(b"[1,-Infinity]"), echo(b"1e400"), echo(b'"\\u0000"'), echo(b'{"\\u0000":1}'),
    echo(b"[" * 160 + b"]" * 160), echo(b"9" * 4200),
    b'{"name":"scale","args":{"factor":NaN,"exactly":true,"values":[]}}',
    b'{"name":"scale","args":{"factor":1e999,"exactly":true,"values":[]}}',
    b'{"name":"ship/order ~\xc3\xbc","args":{"items":[{"product":"x","weight":Infinity}]}}',
    b'{"name":"ship/order ~\xc3\xbc","args":{"items":[{"product":"\\u0000"}]}}',
    b'{"name":"add","args":{"a":1.5}}', b'{"name":"add","args":{"a":true}}', b'{"name":"add","args":{"a":1e400}}',
    b'{"name":"echo","delay_seconds":NaN}', b'{"name":"echo","delay_seconds":1e400}',
]  # fmt: skip


@pytest.fixture
async def small(database_url: str, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A server that takes arguments of 1000 bytes, and waits 1 s for a body."""
    hasty = settings.changed(ttl=timedelta(seconds=1), lock_timeout=timedelta(milliseconds=100), args_bytes_max=1000)
    async with client_of(asgi(shop(database_url, hasty), token=None)) as client:
        yield client


async def test_what_is_no_json_is_refused_as_such(api: httpx.AsyncClient) -> None:
    for body in NO_JSON:
        problem(await post(api, body), 400, "malformed_json")


@pytest.mark.fault("Payloads", "U+0000 in arguments")
async def test_what_cannot_be_carried_is_refused_as_invalid(
    api: httpx.AsyncClient, connection: AsyncConnection
) -> None:
    for body in INVALID:
        assert problem(await post(api, body), 422, "invalid")["errors"]
    assert not await (await connection.execute("SELECT FROM fleet.task")).fetchall()


async def test_what_is_taken_reaches_the_handler_unchanged(app: Fleet, api: httpx.AsyncClient) -> None:
    values = [
        b"null", b"true", b"0", b"-0.0", b"0.1", b"1e308", b"5e-324", b"1E5", b"7.0", b"9007199254740993",
        b"-" + b"9" * 3900, b'""', b'"\\u00e9\\ud83d\\ude00"', '"é\U0001f600\u2028\x7f"'.encode(),
        b'"\\u0001\\n\\t\\"\\\\\\/"', b'"nul\\\\u0000"',
        b"[]", b"{}", b"[" * 140 + b"]" * 140, b'{"":{"a/b":1,"~":[null,[1.5]]}}', b'{"a":1,"a":2}',
        b'"' + b"x" * 100_000 + b'"',
        b'[1.0,1,true,"1",null]', b'{"b":1,"a":2}',
    ]  # fmt: skip
    ids = []
    for value in values:
        answer = await post(api, echo(value))
        assert answer.status_code == 202, (value[:60], answer.text)
        ids.append(answer.json()["id"])
    async with app.worker():
        for task_id, value in zip(ids, values, strict=True):
            shown = await ended(api, task_id, State.SUCCEEDED)
            assert exactly(shown["args"]["value"]) == exactly(shown["result"]) == exactly(json.loads(value)), value[:60]


def exactly(value: Any) -> Any:
    """Return numbers as they are written, so that 1e308 is 10 ** 308, and true so that it is not 1."""
    match value:
        case bool():
            return (bool, value)
        case int() | float():
            return Decimal(repr(value))
        case list():
            return [exactly(each) for each in value]
        case dict():
            return {name: exactly(each) for name, each in value.items()}
    return value


async def test_typed_arguments_reach_the_handler_as_they_were_meant(
    database_url: str, settings: Settings, api: httpx.AsyncClient
) -> None:
    app = shop(database_url, settings)
    orders = {
        "remind": {"at": "2026-03-04T05:06:07.123456+02:00", "day": "2026-03-04", "wait": "PT90S"},
        "ship/order ~ü": {
            "items": [{"product": "tea", "count": 3.0, "unitPrice": 2.5}],
            "by_name": {"x": {"product": "y"}},
        },
        "scale": {"factor": 3, "exactly": True, "values": [1, 2.5, 1e300], "unit": "km"},
    }
    for name, args in orders.items():
        answer = await api.post("/tasks", json={"name": name, "args": args})
        assert answer.status_code == 202, answer.text
        shown = (await api.get(answer.headers["Location"])).json()["args"]
        taken = app.handlers[name].decode(json.dumps(shown))
        meant = app.handlers[name].decode(json.dumps(args))
        assert taken == meant
    assert taken["values"] == [1, 2.5, 1e300]


@pytest.mark.parametrize(
    "media_type",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/problem+json",
        "application/jsonx",
        "json",
        "text/json",
    ],
)
async def test_a_body_that_is_not_called_json_is_refused(api: httpx.AsyncClient, media_type: str) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    problem(await post(api, echo(b"1"), headers), 415, "not_json")


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON;charset=UTF-8", "application/json ;x=y"]
)
async def test_json_is_taken_with_parameters_and_in_any_case(api: httpx.AsyncClient, media_type: str) -> None:
    assert (await post(api, echo(b"1"), {"Content-Type": media_type})).status_code == 202


@pytest.mark.parametrize("path", ["/dead/requeue", "/dead/discard"])
async def test_every_route_that_takes_a_body_is_as_strict(api: httpx.AsyncClient, path: str) -> None:
    problem(await api.post(path), 415, "not_json")
    problem(await api.post(path, content=b"{", headers=JSON), 400, "malformed_json")
    problem(await api.post(path, content=b" " * (4 * 1024 * 1024 + 1), headers=JSON), 413, "too_large")


@pytest.mark.fault("Payloads", "arguments of exactly the limit, and one byte more")
async def test_the_largest_body_is_read_and_a_byte_more_refused(small: httpx.AsyncClient) -> None:
    body = echo(b"1")
    assert (await post(small, body.ljust(LIMIT))).status_code == 202
    problem(await post(small, body.ljust(LIMIT + 1)), 413, "too_large")


async def test_arguments_over_their_limit_are_refused(small: httpx.AsyncClient, connection: AsyncConnection) -> None:
    most = 1000 - len('{"value":""}')
    assert (await post(small, echo(b'"' + b"x" * most + b'"'))).status_code == 202
    told = problem(await post(small, echo(b'"' + b"x" * (most + 1) + b'"')), 413, "too_large")
    assert "1,001 bytes" in told["detail"]
    assert len(await (await connection.execute("SELECT FROM fleet.task")).fetchall()) == 1


async def test_a_length_over_the_limit_is_refused_before_anything_is_read(small: httpx.AsyncClient) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield pytest.fail("the body was read")

    answer = await post(small, never(), JSON | {"Content-Length": str(LIMIT + 1)})
    problem(answer, 413, "too_large")
    assert answer.headers["Connection"] == "close"


@pytest.mark.fault("Payloads", "a body without a length over the limit")
async def test_a_body_without_a_length_is_counted_while_it_comes(small: httpx.AsyncClient) -> None:
    given = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal given
        while True:
            given += 1
            assert given < LIMIT
            yield b" " * 1000

    answer = await post(small, endless())
    problem(answer, 413, "too_large")
    assert answer.headers["Connection"] == "close"
    assert given == LIMIT // 1000 + 1


async def test_a_body_that_does_not_come_is_given_up(small: httpx.AsyncClient) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b'{"name"'
        await asyncio.Event().wait()

    answer = await asyncio.wait_for(post(small, stuck()), PATIENCE_SECONDS)
    problem(answer, 408, "too_slow")
    assert answer.headers["Connection"] == "close"


@pytest.fixture(scope="module")
def server(one_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    with Running(folder, one_url, FLEET_ARGS_BYTES_MAX="1000", FLEET_TTL="2s") as running:
        running.wait_for("api listening")
        yield running


def test_a_client_that_says_it_sends_too_much_need_not_send_it(server: Running) -> None:
    answer = server.tell(HEAD + b"Content-Length: 1000000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


def test_a_client_that_asks_first_is_not_told_to_go_on_with_too_much(server: Running) -> None:
    answer = server.tell(HEAD + b"Expect: 100-continue\r\nContent-Length: 1000000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")


def sent_until_refused(wire: socket.socket, more: Callable[[], bytes]) -> int:
    """Send until the other end has had enough; return how many bytes that took."""
    sent = 0
    with suppress(ConnectionError):
        while sent < 200_000_000:
            chunk = more()
            wire.sendall(chunk)
            sent += len(chunk)
    return sent


@pytest.mark.fault("Payloads", "a body without a length over the limit")
@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n"),
        (b"GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Endless: ", b"x" * 65536),
        (b"GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X-Many: x\r\n" * 6000),
        (b"GET /tasks?", b"x" * 65536),
    ],
    ids=["body", "header", "headers", "target"],
)
def test_a_request_that_never_ends_is_cut_off_and_takes_no_memory(server: Running, head: bytes, chunk: bytes) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    with server.connect() as wire:
        wire.sendall(head)
        assert sent_until_refused(wire, lambda: chunk) < 100_000_000
    assert process.memory_info().rss - before < 50_000_000
    assert server.call("GET", "/livez").status_code == 200


def test_a_body_that_stops_half_way_is_given_up(server: Running) -> None:
    answer = server.tell(HEAD + b"Content-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_leaves_in_the_middle_of_a_body_harms_nobody(server: Running) -> None:
    for _ in range(20):
        with server.connect() as wire:
            wire.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
    eventually_sync(lambda: connections(server) == {"LISTEN"})
    assert server.call("GET", "/livez").status_code == 200
    assert not server.said("request broken by a defect of fleet")


def connections(server: Running) -> set[str]:
    """The states of all connections to it."""
    port = int(server.address.rpartition(":")[2])
    ours = psutil.Process(server.process.pid).net_connections()
    return {each.status for each in ours if each.laddr.port == port}


def test_a_body_that_nobody_reads_is_not_taken_for_the_next_request(server: Running) -> None:
    hidden = b"GET /hidden HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with server.connect() as wire:
        wire.sendall(
            b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(hidden)
            + hidden
            + b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        answers = received(wire)
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert b"404" not in answers


def test_a_refused_body_is_not_taken_for_the_next_request(server: Running, tmp_path: Path) -> None:
    hidden = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with server.connect() as wire:
        wire.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n" + hidden)
        with suppress(ConnectionResetError):
            assert b"200 OK" not in received(wire)
