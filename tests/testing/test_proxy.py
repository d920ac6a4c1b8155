"""The proxy lets everything through as it was, unless it is told not to; and then exactly that happens."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from fleet.testing.proxy import Proxy, Way
from tests.support import eventually_sync

Connection = psycopg.Connection[tuple[object, ...]]
HELD_SECONDS = 0.3


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def direct(database_url: str) -> Iterator[Connection]:
    """Past the proxy, with a table of its own."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS crossed (number int)")
        connection.execute("TRUNCATE crossed")
        yield connection
        connection.execute("DROP TABLE crossed")


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Connection]:
    connection: Connection = psycopg.connect(proxy.url, autocommit=True)
    yield connection
    connection.close()


def timed(connection: Connection) -> float:
    """How long a statement took, in seconds."""
    began = time.monotonic()
    connection.execute("SELECT 1")
    return time.monotonic() - began


def test_everything_passes_as_it_was(through: Connection, direct: Connection) -> None:
    numbers = list(range(10))
    assert [through.execute("SELECT %s::int", (number,), prepare=True).fetchone() for number in numbers] == [
        (number,) for number in numbers
    ]
    with through.cursor().copy("COPY crossed FROM STDIN") as copy:
        for number in numbers:
            copy.write_row((number,))
    assert direct.execute("SELECT count(*) FROM crossed").fetchone() == (10,)
    with through.pipeline():
        cursors = [through.execute("SELECT %s::int", (number,)) for number in numbers]
        assert [cursor.fetchone() for cursor in cursors] == [(number,) for number in numbers]
    big = "x" * 3_000_000
    assert through.execute("SELECT %s::text", (big,)).fetchone() == (big,)
    with pytest.raises(psycopg.errors.DivisionByZero):
        through.execute("SELECT 1/0")
    through.execute("LISTEN news")
    direct.execute("NOTIFY news, 'hello'")
    assert [note.payload for note in through.notifies(timeout=30, stop_after=1)] == ["hello"]


def test_it_knows_what_crossed_by_each_protocol(proxy: Proxy, through: Connection) -> None:
    through.execute("SELECT 1")
    for number in range(3):
        through.execute("SELECT %s::int", (number,), prepare=True)
    assert [crossing.statement for crossing in proxy.crossings] == ["SELECT 1"] + ["SELECT $1::int"] * 3
    assert {crossing.connection for crossing in proxy.crossings} == {1}


@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_is_cut_around_a_statement(
    proxy: Proxy, through: Connection, direct: Connection, when: str, *, prepare: bool
) -> None:
    cut = proxy.cut("insert into crossed", when="before" if when == "before" else "after")
    with pytest.raises(psycopg.OperationalError):
        through.execute("INSERT INTO crossed VALUES (%s)", (1,), prepare=prepare)
    cut.wait()
    assert (cut.happened, cut.tags) == (1, [[]] if when == "before" else [["INSERT 0 1"]])
    assert direct.execute("SELECT * FROM crossed").fetchall() == ([] if when == "before" else [(1,)])
    with psycopg.connect(proxy.url, autocommit=True) as again:  # the second is let through
        again.execute("INSERT INTO crossed VALUES (2)")
    assert cut.happened == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_transaction_is_cut_around_its_commit(
    proxy: Proxy, through: Connection, direct: Connection, when: str
) -> None:
    cut = proxy.cut("^commit", when="before" if when == "before" else "after")
    with pytest.raises(psycopg.OperationalError), through.transaction():
        through.execute("INSERT INTO crossed VALUES (1)")
    assert cut.happened == 1
    assert direct.execute("SELECT * FROM crossed").fetchall() == ([] if when == "before" else [(1,)])


def test_in_a_pipeline_what_came_before_the_cut_is_answered(
    proxy: Proxy, through: Connection, direct: Connection
) -> None:
    cut = proxy.cut(r"INSERT INTO crossed VALUES \(2\)", when="after")
    first = through.cursor()
    with pytest.raises(psycopg.OperationalError), through.pipeline() as pipeline:  # noqa: PT012 - it breaks on the way
        first.execute("INSERT INTO crossed VALUES (1) RETURNING number")
        pipeline.sync()
        assert first.fetchone() == (1,)
        through.execute("INSERT INTO crossed VALUES (2)")
        pipeline.sync()
        through.execute("SELECT 1")
    assert cut.happened == 1
    assert direct.execute("SELECT * FROM crossed ORDER BY number").fetchall() == [(1,), (2,)]


def test_a_cut_happens_as_often_as_was_said(proxy: Proxy, direct: Connection) -> None:
    cut = proxy.cut("INTO crossed", when="after", count=2)
    for number in range(3):
        try:
            with psycopg.connect(proxy.url, autocommit=True) as connection:
                connection.execute("INSERT INTO crossed VALUES (%s)", (number,))
        except psycopg.OperationalError:
            continue
    assert cut.happened == 2
    assert direct.execute("SELECT count(*) FROM crossed").fetchone() == (3,)
    with pytest.raises(TimeoutError, match="0 of 1 statements like never"):
        proxy.cut("never").wait(0)


def test_a_delay_is_of_each_way(proxy: Proxy, through: Connection) -> None:
    proxy.delay(0.1)
    assert timed(through) >= 0.2
    proxy.delay(0.05, 0.1)
    assert timed(through) >= 0.1
    proxy.heal()
    assert min(timed(through) for _ in range(20)) < 0.1


def test_a_throttle_lets_so_many_bytes_through(proxy: Proxy, through: Connection) -> None:
    proxy.throttle(20_000)
    began = time.monotonic()
    assert through.execute("SELECT repeat('x', 10000)").fetchone() == ("x" * 10_000,)
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("way", ["to_server", "to_client", "both"])
def test_what_is_sent_into_a_frozen_network_arrives_late(
    proxy: Proxy, through: Connection, direct: Connection, way: Way
) -> None:
    proxy.freeze(way)
    began = time.monotonic()
    outcome: list[float] = []

    def insert() -> None:
        through.execute("INSERT INTO crossed VALUES (1)")
        outcome.append(time.monotonic() - began)

    thread = threading.Thread(target=insert)
    thread.start()
    if way == "to_client":  # the server has done it, and the client does not know
        eventually_sync(lambda: direct.execute("SELECT * FROM crossed").fetchall() == [(1,)])
    thread.join(HELD_SECONDS)
    assert outcome == []
    assert direct.execute("SELECT * FROM crossed").fetchall() == ([(1,)] if way == "to_client" else [])
    proxy.heal()
    thread.join(30)
    assert outcome[0] >= HELD_SECONDS
    assert direct.execute("SELECT * FROM crossed").fetchall() == [(1,)]


def test_what_a_client_sent_before_it_gave_up_arrives_late_too(
    proxy: Proxy, through: Connection, direct: Connection
) -> None:
    proxy.freeze("to_server")
    through.pgconn.send_query(b"INSERT INTO crossed VALUES (1)")
    through.pgconn.flush()
    through.close()
    assert direct.execute("SELECT * FROM crossed").fetchall() == []
    proxy.heal()
    eventually_sync(lambda: direct.execute("SELECT * FROM crossed").fetchall() == [(1,)])


def test_a_half_open_connection_swallows_everything_and_is_reset_when_the_network_is_back(
    proxy: Proxy, through: Connection, direct: Connection
) -> None:
    proxy.half_open()
    healer = threading.Timer(HELD_SECONDS, proxy.heal)
    began = time.monotonic()
    healer.start()
    with pytest.raises(psycopg.OperationalError):
        through.execute("INSERT INTO crossed VALUES (1)")
    assert time.monotonic() - began >= HELD_SECONDS
    healer.join()
    assert direct.execute("SELECT * FROM crossed").fetchall() == []
    with psycopg.connect(proxy.url, autocommit=True) as again:
        again.execute("SELECT 1")


def test_a_reset_ends_all_connections_and_lets_new_ones_in(proxy: Proxy, through: Connection) -> None:
    proxy.reset()
    assert proxy.connections == 0
    with pytest.raises(psycopg.OperationalError):
        through.execute("SELECT 1")
    with psycopg.connect(proxy.url, autocommit=True) as again:
        again.execute("SELECT 1")


def test_while_it_refuses_what_is_open_goes_on(proxy: Proxy, through: Connection) -> None:
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(proxy.url)
    through.execute("SELECT 1")
    proxy.heal()
    psycopg.connect(proxy.url).close()


def test_a_server_that_is_not_there_is_a_connection_reset() -> None:
    with Proxy("postgresql://postgres@127.0.0.1:1/postgres") as proxy, pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.url)


def test_it_writes_down_what_it_did(database_url: str, tmp_path: Path) -> None:
    with Proxy(database_url, history=tmp_path) as proxy:
        cut = proxy.cut("SELECT 1", when="after")
        with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.url, autocommit=True) as connection:
            connection.execute("SELECT 1")
        proxy.freeze("to_client")
        proxy.heal()
        assert cut.happened == 1
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    told = [(line["what"], line.get("fault") or (line["when"], line["statement"])) for line in lines]
    assert told[:3] == [("cut", ("after", "SELECT 1")), ("fault", "freeze"), ("fault", "heal")]
    assert lines[1]["way"] == "to_client"


@pytest.mark.parametrize("breaks", [Proxy.freeze, Proxy.half_open, Proxy.refuse], ids=lambda method: method.__name__)
def test_it_ends_whatever_it_was_told(database_url: str, breaks: Callable[[Proxy], None]) -> None:
    with Proxy(database_url) as proxy:
        connection = psycopg.connect(proxy.url, autocommit=True)
        breaks(proxy)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
