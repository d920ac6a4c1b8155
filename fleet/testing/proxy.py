"""A network between a client and PostgreSQL that is as bad as a test wants it to be, at the moment that it wants."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

from fleet.testing.link import Break, Crossing, Direction, Link, Network, Streams, When
from fleet.testing.wire import Exchange
from fleet.verify.history import Recorder

PATIENCE_SECONDS = 30.0
Way = Literal["to_server", "to_client", "both"]
T = TypeVar("T")


class Cut:
    """Connections that are to be broken around a statement, and those that have been."""

    def __init__(self, pattern: str, when: When, count: int, tell: Callable[[Break, Exchange], None]) -> None:
        self.statements: list[str] = []  #: those around which a connection was broken
        self.tags: list[list[str]] = []  #: what the server had said to each, such as `SELECT 1`; nothing with "before"
        self._tell = tell
        self._changed = threading.Condition()
        self.break_ = Break(pattern, when, count, self._happens)

    @property
    def happened(self) -> int:
        """How many connections have been broken."""
        return len(self.statements)

    def wait(self, seconds: float = PATIENCE_SECONDS, count: int = 1) -> None:
        """Return when so many have been broken. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.happened >= count, seconds):
                words = f"{self.happened} of {count} statements like {self.break_.pattern}"
                raise TimeoutError(f"{words} crossed within {seconds:g} s")

    async def cut(self, seconds: float = PATIENCE_SECONDS, count: int = 1) -> None:
        """Do the same as `wait`, without holding up the event loop."""
        await asyncio.to_thread(self.wait, seconds, count)

    def _happens(self, by: Break, exchange: Exchange) -> None:
        self._tell(by, exchange)
        with self._changed:
            self.tags.append(exchange.tags)
            self.statements.append(exchange.statements[-1])
            self._changed.notify_all()


class Proxy:
    """Stands before the server of `database_url`. What comes to `url` goes there, unless a test makes trouble.

    Runs in a thread of its own: every method can be called from anywhere, and has taken effect when it returns. With
    `history`, a folder, it writes what it did to the connections.
    """

    def __init__(self, database_url: str, history: Path | str | None = None) -> None:
        self.url = ""  #: where clients connect to, once it runs
        self._given = {name: str(value) for name, value in conninfo_to_dict(database_url).items() if value is not None}
        self._network = Network(self._connect)
        self._links: set[Link] = set()
        self._count = 0
        # Bound and never listening: it keeps the port ours while connections are refused.
        self._anchor = _bound(0)
        self._port = int(self._anchor.getsockname()[1])
        self._history = None if history is None else Recorder(history, f"proxy {self._port}")
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        self.url = _url(self._given, self._port)
        return self

    def __exit__(self, *error: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._anchor.close()
        if self._history is not None:
            self._history.close()

    @property
    def crossings(self) -> list[Crossing]:
        """The statements that went to the server, the last hundred thousand of them."""
        return list(self._network.crossings)

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    def delay(self, seconds: float, longest: float | None = None) -> None:
        """Let everything take so long, one way; with `longest`, something between the two."""
        self._do(self._set("delay", delay=(seconds, seconds if longest is None else longest)))

    def throttle(self, bytes_per_second: float) -> None:
        """Let no more through, of one connection one way."""
        self._do(self._set("throttle", bytes_per_second=bytes_per_second))

    def freeze(self, way: Way = "both") -> None:
        """Let nothing through that way. What is sent meanwhile arrives after `heal`, late, as TCP would have it."""
        self._do(self._freeze(way))

    def half_open(self) -> None:
        """Take everything and let nothing arrive, with all sockets open: a middlebox that has forgotten us."""
        self._do(self._set("half-open", lossy=True))

    def reset(self) -> None:
        """Reset all connections, both ways, now."""
        self._do(self._reset())

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        self._do(self._refuse())

    def heal(self) -> None:
        """Take it all back, cuts that have not happened too. A connection that lost something is reset."""
        self._do(self._heal())

    def cut(self, pattern: str, when: When = "after", count: int = 1) -> Cut:
        """Break the connection the next `count` times that a statement crosses in which this regular expression is found.

        "before": it never gets to the server. "after": the server has finished it, and nobody hears the answer.
        """
        cut = Cut(pattern, when, count, self._cut_happened)
        self._do(self._arm(cut))
        return cut

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_SECONDS)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=_bound(self._port))

    async def _refuse(self) -> None:
        self._write("fault", fault="refuse")
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, *client: Any) -> None:
        self._count += 1
        link = Link(self._count, self._network, (client[0], client[1]))
        self._links.add(link)
        try:
            with suppress(asyncio.CancelledError):  # it was reset
                await link.run()
        finally:
            self._links.discard(link)

    async def _connect(self) -> Streams:
        host = self._given.get("hostaddr") or self._given.get("host") or os.environ.get("PGHOST", "localhost")
        port = self._given.get("port") or os.environ.get("PGPORT", "5432")
        if host.startswith(("/", "@")):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, int(port))

    async def _set(self, fault: str, **conditions: Any) -> None:
        self._write("fault", fault=fault, **conditions)
        for name, value in conditions.items():
            setattr(self._network, name, value)

    async def _freeze(self, way: Way) -> None:
        self._write("fault", fault="freeze", way=way)
        for name, direction in self._directions().items():
            if way in (name, "both"):
                direction.flows.clear()

    async def _reset(self) -> None:
        self._write("fault", fault="reset", connections=len(self._links))
        for link in list(self._links):
            link.reset()
        await self._gone(set(self._links))

    async def _heal(self) -> None:
        self._write("fault", fault="heal")
        network = self._network
        network.delay, network.bytes_per_second, network.lossy = (0.0, 0.0), None, False
        network.breaks.clear()
        lost = {link for link in self._links if link.lost}
        for link in lost:
            link.reset()
        await self._gone(lost)
        for direction in self._directions().values():
            direction.flows.set()
        await self._listen()

    async def _gone(self, links: set[Link]) -> None:
        if tasks := [link.task for link in links if link.task is not None]:
            await asyncio.wait(tasks)

    async def _arm(self, cut: Cut) -> None:
        self._network.breaks.append(cut.break_)

    async def _end(self) -> None:
        await self._refuse()
        while self._links:
            await self._reset()
        for _ in range(10):  # turns of the loop, in which what was closed is taken down
            await asyncio.sleep(0)

    def _directions(self) -> dict[str, Direction]:
        return {"to_server": self._network.to_server, "to_client": self._network.to_client}

    def _cut_happened(self, by: Break, exchange: Exchange) -> None:
        self._write("cut", when=by.when, statement=exchange.statements[-1], tags=exchange.tags)

    def _write(self, what: str, **facts: Any) -> None:
        if self._history is not None:
            self._history.write(what, **facts)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _url(given: dict[str, str], port: int) -> str:
    """Return the same database at another address; without encryption, which the proxy could not look into."""
    options = {
        name: value
        for name, value in given.items()
        if name not in ("host", "hostaddr", "port", "user", "password", "dbname")
        and not name.startswith(("ssl", "gss"))
    }
    user = quote(given.get("user", ""), safe="")
    password = f":{quote(given['password'], safe='')}" if "password" in given else ""
    at = f"{user}{password}@" if user or password else ""
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{at}127.0.0.1:{port}/{quote(given.get('dbname', ''), safe='')}{query}"
