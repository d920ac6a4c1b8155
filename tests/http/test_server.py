"""The server as a process, and what it says of requests that no route takes."""

import asyncio
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from click.testing import CliRunner

from fleet import Fleet, logs
from fleet.cli import main
from fleet.events import Event, Events, RequestAnswered, RequestBroken
from fleet.http.server import asgi
from fleet.postgres import inspect
from tests.http.conftest import client_of
from tests.http.running import Running, received
from tests.http.steps import problem
from tests.support import eventually_sync, url_of

LIVE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"

OWN = """
from fleet import Fleet, Settings

app = Fleet({!r}, settings=Settings(args_bytes_max=10))

@app.task
def note(text: str) -> None: ...
"""

WAYS = {
    "/tasks": {"GET", "HEAD", "POST"},
    f"/tasks/{uuid4()}": {"GET", "HEAD"},
    f"/tasks/{uuid4()}/cancel": {"POST"},
    "/dead": {"GET", "HEAD"},
    "/dead/requeue": {"POST"},
    "/queues/a%2Fb/pause": {"POST"},
    "/workers": {"GET", "HEAD"},
    "/livez": {"GET", "HEAD"},
    "/openapi.json": {"GET", "HEAD"},
}


async def test_a_wrong_method_is_told_which_there_are(api: httpx.AsyncClient) -> None:
    for path, ways in WAYS.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW", "get"} - ways:
            answer = await api.request(method.encode().decode(), path)
            if method.upper() in ways:
                continue  # the client writes it in capitals
            problem(answer, 405, "method_not_allowed")
            assert {each.strip() for each in answer.headers["Allow"].split(",")} == ways


async def test_head_says_what_get_would(api: httpx.AsyncClient) -> None:
    for path in ("/tasks", "/livez", "/readyz", "/queues", "/openapi.json"):
        head, get = await api.head(path), await api.get(path)
        assert (head.status_code, head.headers["Content-Type"]) == (200, get.headers["Content-Type"])
    assert (await api.head(f"/tasks/{uuid4()}")).status_code == 404


@pytest.mark.parametrize(
    "path", ["/", "/nowhere", "/tasks/", "/tasks/x/y", "/Tasks", "//tasks", "/livez/", "/queues/x", "/%00", "/tasks%2F"]
)
async def test_what_is_not_there_is_told_as_such(api: httpx.AsyncClient, path: str) -> None:
    problem(await api.get(path), 404, "not_found")


async def test_every_answer_forbids_to_guess_and_to_keep_it(api: httpx.AsyncClient) -> None:
    for path in ("/tasks", "/tasks/x", "/nowhere", "/openapi.json", "/livez"):
        headers = (await api.get(path)).headers
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")


async def test_a_defect_is_logged_and_not_shown(
    app: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**filters: Any) -> None:
        raise RuntimeError("secret")

    seen: list[Event] = []
    events = Events()
    events.subscribe(seen.append)
    logs.subscribe(events)
    monkeypatch.setattr(inspect, "tasks", broken)
    with caplog.at_level(logging.ERROR):
        async with client_of(asgi(app, token=None, events=events)) as api:
            answer = await api.get("/tasks")
            assert (await api.get("/livez")).status_code == 200
    problem(answer, 500, "defect")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    (defect,) = [event for event in seen if isinstance(event, RequestBroken)]
    assert (defect.method, defect.route, str(defect.error)) == ("GET", "/tasks", "secret")
    assert [(each.status, each.route) for each in seen if isinstance(each, RequestAnswered)] == [
        (500, "/tasks"),
        (200, "/livez"),
    ]
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "secret"


def patient(folder: Path, database_url: str, drain_timeout: str = "120s") -> Running:
    """Start a server whose requests may wait long for a lock."""
    return Running(
        folder,
        database_url,
        FLEET_TTL="120s",
        FLEET_STATEMENT_TIMEOUT="100s",
        FLEET_LOCK_TIMEOUT="90s",
        FLEET_DRAIN_TIMEOUT=drain_timeout,
    )


@contextmanager
def in_flight(
    running: Running, database_url: str
) -> Iterator[tuple[psycopg.Connection[Any], list[httpx.Response | Exception]]]:
    """Hold a request in the middle of its statement; its answer is put into the list when it comes."""
    answers: list[httpx.Response | Exception] = []

    def post() -> None:
        try:
            answers.append(running.call("POST", "/tasks", json={"name": "echo"}, headers={"Idempotency-Key": "k"}))
        except httpx.HTTPError as error:
            answers.append(error)

    thread = threading.Thread(target=post)
    with psycopg.connect(database_url) as holder, psycopg.connect(database_url, autocommit=True) as watch:
        holder.execute(
            "INSERT INTO fleet.submission (scope, key, task_id, fingerprint) VALUES ('http', 'k', %s, '')", (uuid4(),)
        )
        thread.start()
        eventually_sync(
            lambda: watch.execute(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchall()
        )
        yield holder, answers
        holder.rollback()
    thread.join()


def test_a_signal_lets_the_request_in_flight_end_and_nothing_new_begin(database_url: str, tmp_path: Path) -> None:
    with patient(tmp_path, database_url) as running, closing(running.connect()) as idle:
        idle.sendall(LIVE)
        assert one(idle).startswith(b"HTTP/1.1 200 ")
        with in_flight(running, database_url) as (holder, answers):
            running.process.send_signal(signal.SIGTERM)
            assert running.wait_for("draining")["why"] == "received SIGTERM"
            assert received(idle) == b""
            with pytest.raises(ConnectionRefusedError):
                running.connect()
            assert running.process.poll() is None
            holder.rollback()
            assert running.ended() == 0
    (answer,) = answers
    assert isinstance(answer, httpx.Response)
    assert answer.status_code == 202
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT id::text FROM fleet.task").fetchall() == [(answer.json()["id"],)]


def unknown(answers: list[httpx.Response | Exception]) -> bool:
    """Tell whether the client was told that nobody knows how far its request got."""
    (answer,) = answers
    assert isinstance(answer, httpx.Response)
    return bool(problem(answer, 503, "outcome_unknown"))


@pytest.mark.fault("Deploy", "SIGTERM twice")
def test_a_second_signal_waits_for_nobody_and_does_not_say_that_anything_failed(
    database_url: str, tmp_path: Path
) -> None:
    with patient(tmp_path, database_url) as running, in_flight(running, database_url) as (_, answers):
        for number in (signal.SIGTERM, signal.SIGINT):
            running.process.send_signal(number)
            running.wait_for("draining")
        assert running.ended() == 0
        eventually_sync(lambda: answers)
    assert unknown(answers)
    assert "Traceback" not in running.words


def test_a_request_that_does_not_end_is_not_waited_for_longer_than_a_drain_lasts(
    database_url: str, tmp_path: Path
) -> None:
    with (
        patient(tmp_path, database_url, drain_timeout="1s") as running,
        in_flight(running, database_url) as (_, answers),
    ):
        running.process.send_signal(signal.SIGTERM)
        assert running.ended() == 0
        eventually_sync(lambda: answers)
    assert unknown(answers)


def test_a_signal_that_comes_as_soon_as_it_listens_ends_it_in_order(database_url: str, tmp_path: Path) -> None:
    with Running(tmp_path, database_url) as running:
        running.wait_for("api listening")
        running.process.send_signal(signal.SIGINT)
        assert running.ended() == 0
        assert "Traceback" not in running.words


def test_it_ends_with_its_supervisor(database_url: str, tmp_path: Path) -> None:
    ours, its = socket.socketpair()
    with its, Running(tmp_path, database_url, supervisor=its) as running:
        its.close()
        running.wait_for("api listening")
        ours.close()
        assert running.ended() == 0
        assert running.said("draining")[-1]["why"] == "its supervisor is gone"


def test_a_lent_socket_outlives_a_server_that_is_killed_so_that_no_client_is_refused(
    database_url: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        where = listening.getsockname()
        with Running(tmp_path, database_url, listening=listening) as running:
            with closing(socket.create_connection(where)) as wire:
                wire.sendall(LAST)
                assert received(wire).startswith(b"HTTP/1.1 200 ")
            running.process.kill()
            running.process.wait()
        with closing(socket.create_connection(where)) as between:
            between.sendall(LAST)
            with Running(tmp_path, database_url, listening=listening) as running:
                assert received(between).startswith(b"HTTP/1.1 200 ")
                running.process.send_signal(signal.SIGTERM)
                assert running.ended() == 0


def refused(database_url: str | None, *arguments: str) -> tuple[int, str]:
    """Call `fleet api run`, which must end by itself; return its exit code and what it says."""
    environment: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("FLEET_", "PG"))}
    environment["FLEET_DATABASE_URL"] = database_url
    result = CliRunner().invoke(main, ["api", "run", "tests.http.shop:app", "--port=0", *arguments], env=environment)
    assert isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


def test_a_port_that_somebody_has_is_told_as_such(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, words = refused(database_url, f"--port={port}")
    assert code == 6
    assert f"port {port} on 127.0.0.1 cannot be had: address already in use. Choose another with --port" in words


def test_an_address_that_is_not_there_is_told_as_such(database_url: str) -> None:
    for host in ("192.0.2.1", "nowhere.invalid"):
        code, words = refused(database_url, f"--host={host}")
        assert (code, host in words) == (2, True)


def test_a_database_that_is_not_there_ends_it_with_3() -> None:
    code, words = refused("postgresql://nobody@127.0.0.1:1/none")
    assert (code, "cannot be reached" in words) == (3, True)


def test_no_database_named_ends_it_with_3() -> None:
    code, words = refused(None)
    assert (code, "no database was named" in words) == (3, True)


def test_a_database_without_the_schema_ends_it_with_4(server_url: str) -> None:
    code, words = refused(url_of(server_url, "template1"))
    assert (code, "fleet db upgrade" in words) == (4, True)


def test_the_database_and_the_settings_of_the_app_are_used_and_the_environment_goes_before(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN.format(database_url))
    program = ("-m", "fleet", "api", "run", "own:app", "--log=json", "--port=0")
    with Running(tmp_path, None, program=program, FLEET_ARGS_BYTES_MAX="1000") as running:
        statuses = [
            running.call("POST", "/tasks", json={"name": "note", "args": {"text": length * "x"}}).status_code
            for length in (900, 1000)
        ]
        assert statuses == [202, 413]


@pytest.fixture(scope="module")
def server(one_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("server"), one_url) as running:
        running.wait_for("api listening")
        yield running


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET /livez HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n", b"GET /liv\xc3\xa9z HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + b"9" * 100 + b"\r\n\r\n",
        b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"CONNECT evil.example:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET http://evil.example/livez HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
    ids=lambda garbage: repr(garbage[:30]),
)  # fmt: skip
def test_garbage_on_the_wire_is_refused_and_harms_nobody(server: Running, garbage: bytes) -> None:
    with closing(server.connect()) as wire:
        wire.sendall(garbage)
        wire.shutdown(socket.SHUT_WR)
        answer = received(wire)
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert b"Traceback" not in answer
    assert server.tell(LAST).startswith(b"HTTP/1.1 200 ")


def one(wire: socket.socket) -> bytes:
    """Read one answer with a JSON body."""
    answer = b""
    while b"\r\n\r\n" not in answer or not answer.endswith(b"}\n"):
        more = wire.recv(65536)
        assert more, answer
        answer += more
    return answer


def test_one_connection_carries_many_requests_also_sent_ahead(server: Running) -> None:
    with closing(server.connect()) as wire:
        for _ in range(3):
            wire.sendall(LIVE)
            assert one(wire).startswith(b"HTTP/1.1 200 ")
        wire.sendall(LIVE + b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + LAST)
        answers = received(wire)
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


@pytest.mark.parametrize("offered", [b"h2c", b"websocket", b"TLS/1.0"])
def test_a_client_that_offers_another_protocol_is_answered_in_this_one(server: Running, offered: bytes) -> None:
    offer = (
        b"Host: 127.0.0.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: "
        + offered
    )
    body = json.dumps({"name": "echo", "args": {"value": offered.decode()}}).encode()
    post = b"POST /tasks HTTP/1.1\r\n%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        offer,
        len(body),
    )
    chunked = (
        b"POST /tasks HTTP/1.1\r\n%s\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" % offer
    )
    with closing(server.connect()) as wire:
        for request in (post + body, chunked + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)):
            wire.sendall(request)
            answer = one(wire)
            assert answer.startswith(b"HTTP/1.1 202 "), answer
            task_id = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
            assert server.call("GET", f"/tasks/{task_id}").json()["args"] == {"value": offered.decode()}
        wire.sendall(post)
        wire.sendall(body[:9])
        wire.sendall(body[9:])
        assert one(wire).startswith(b"HTTP/1.1 202 ")
        wire.sendall(b"GET /livez HTTP/1.1\r\n" + offer + b"\r\n\r\n")
        assert one(wire).startswith(b"HTTP/1.1 200 ")
        wire.sendall(LIVE)
        assert one(wire).startswith(b"HTTP/1.1 200 ")


async def test_many_clients_that_leave_before_their_answer_harm_nobody(server: Running) -> None:
    async def leave() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
        writer.write(b"GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await writer.drain()
        writer.transport.abort()

    await asyncio.gather(*(leave() for _ in range(200)))
    answer = await asyncio.to_thread(server.call, "GET", "/tasks")
    assert answer.status_code == 200
    assert not server.said("request broken by a defect of fleet")
    assert "Traceback" not in server.words
