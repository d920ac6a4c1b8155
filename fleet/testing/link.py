"""One connection through the proxy: what crosses it, and what the network does to that."""

import asyncio
import random
import re
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fleet.testing.wire import Conversation, Decoder, Exchange, Frame

CROSSINGS_MAX = 100_000
_CHUNK = 65_536
_FAREWELL_SECONDS = 1.0
_BACKLOG = 64  # chunks under way in one direction; then the sender feels it

When = Literal["before", "after"]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Crossing(NamedTuple):
    """A statement that went to the server."""

    at: float  #: unix seconds
    connection: int
    statement: str


class Direction:
    """One way through the network. It flows, or it is frozen: then what comes later waits behind what came before."""

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()


class Break:
    """Breaks the next `left` connections that a statement like `pattern` crosses, before it does or after its commit."""

    def __init__(self, pattern: str, when: When, left: int, happens: Callable[["Break", Exchange], None]) -> None:
        self.when = when
        self.left = left
        self.pattern = pattern
        self._expression = re.compile(pattern, re.IGNORECASE | re.DOTALL)
        self._happens = happens

    def takes(self, statement: str) -> bool:
        """Whether it is this statement's turn; then one less is left."""
        if self.left <= 0 or not self._expression.search(statement):
            return False
        self.left -= 1
        return True

    def happened(self, exchange: Exchange) -> None:
        self._happens(self, exchange)


@dataclass(slots=True, eq=False)
class Network:
    """What it is like now, for all connections alike."""

    connect: Callable[[], Awaitable[Streams]]  #: opens a connection to the server
    delay: tuple[float, float] = (0.0, 0.0)  #: seconds that everything takes, at least and at most
    bytes_per_second: float | None = None  #: of one connection in one direction
    lossy: bool = False  #: everything is taken and nothing arrives
    to_server: Direction = field(default_factory=Direction)
    to_client: Direction = field(default_factory=Direction)
    breaks: list[Break] = field(default_factory=list)
    crossings: deque[Crossing] = field(default_factory=lambda: deque(maxlen=CROSSINGS_MAX))


class _Over(Exception):
    """The connection has ended; `hard`: with a reset."""

    def __init__(self, *, hard: bool) -> None:
        self.hard = hard


class Pipe:
    """Chunks under way in one direction, each with the moment at which it may arrive; None is the sender's end."""

    def __init__(self, network: Network, direction: Direction) -> None:
        self.lost = False  # something was swallowed: what follows would make no sense
        self._network = network
        self._direction = direction
        self._chunks: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_BACKLOG)

    async def fill(self, reader: asyncio.StreamReader) -> None:
        """Take in what the sender sends, until its end."""
        data = b"begin"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            await self.put(data or None)

    async def put(self, data: bytes | None) -> None:
        due = time.monotonic() + random.uniform(*self._network.delay)
        await self._chunks.put((due, data))

    async def arrival(self) -> bytes:
        """Return the next chunk when it arrives. Raises _Over at the sender's end."""
        while True:
            due, data = await self._chunks.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            while not self._direction.flows.is_set():
                await self._direction.flows.wait()
            if self._network.lossy:
                self.lost = True
            elif data is None:
                raise _Over(hard=False)
            else:
                return data

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send it, as fast as the network lets it through."""
        begin = 0
        while begin < len(data):
            rate = self._network.bytes_per_second
            piece = data[begin : begin + max(1, int(rate / 20))] if rate else data[begin:]
            writer.write(piece)
            await writer.drain()
            begin += len(piece)
            if rate:
                await asyncio.sleep(len(piece) / rate)


class Link:
    """A client's connection and, from its first message on, the one to the server that belongs to it."""

    def __init__(self, number: int, network: Network, client: Streams) -> None:
        self.number = number
        self._network = network
        self._client = client
        self._server: Streams | None = None
        self._up = Pipe(network, network.to_server)
        self._down = Pipe(network, network.to_client)
        self._conversation = Conversation()
        self._group = asyncio.TaskGroup()
        self.task: asyncio.Task[object] | None = None

    @property
    def lost(self) -> bool:
        """Whether bytes of this connection have been swallowed."""
        return self._up.lost or self._down.lost

    def reset(self) -> None:
        """End it with a reset, both ways."""
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Carry everything, both ways, until one side ends or the connection is reset."""
        self.task, hard = asyncio.current_task(), True
        try:
            async with self._group:
                self._group.create_task(self._up.fill(self._client[0]))
                self._group.create_task(self._carry_up())
                self._group.create_task(self._carry_down())
        except* _Over as ends:
            hard = any(end.hard for end in ends.exceptions if isinstance(end, _Over))
        except* OSError:
            pass  # a side is gone in the middle of something: the other is reset
        finally:
            await _close([streams[1] for streams in (self._client, self._server) if streams is not None], hard=hard)

    async def _carry_up(self) -> None:
        decoder = Decoder(starting=True)
        while True:
            passing, stopped = bytearray(), False
            for frame in decoder.feed(await self._up.arrival()):
                if frame.kind == "encrypt":
                    await self._down.put(b"N")
                    continue
                stopped = self._stopped(frame)
                if stopped:
                    break
                passing += frame.raw
            if passing:
                await self._up.send(await self._connected(), bytes(passing))
            if stopped:
                raise _Over(hard=True)

    def _stopped(self, frame: Frame) -> bool:
        """Let a message cross, or say that the connection breaks before it does."""
        statement = self._conversation.asks(frame)
        if statement is not None:
            for each in self._network.breaks:
                if each.takes(statement):
                    if each.when == "before":
                        each.happened(self._conversation.asking)
                        return True
                    self._conversation.asking.mark = each
            self._network.crossings.append(Crossing(time.time(), self.number, statement))
        self._conversation.sent(frame)
        return False

    async def _connected(self) -> asyncio.StreamWriter:
        if self._server is None:
            self._server = await self._network.connect()
            self._group.create_task(self._down.fill(self._server[0]))
        return self._server[1]

    async def _carry_down(self) -> None:
        """What the proxy says itself comes first: the server's messages begin when the client has started."""
        decoder = Decoder(starting=False)
        while True:
            data = await self._down.arrival()
            if self._server is None:
                await self._down.send(self._client[1], data)
                continue
            passing = bytearray()
            for frame in decoder.feed(data):
                exchange = self._conversation.answering
                done = self._conversation.answers(frame)
                mark = exchange.mark if exchange is not None else None
                if mark is None or frame.kind == "G":  # "send the rows": without it there would be nothing to finish
                    passing += frame.raw
                elif done and exchange is not None:
                    mark.happened(exchange)
                    await self._down.send(self._client[1], bytes(passing))
                    raise _Over(hard=True)
            await self._down.send(self._client[1], bytes(passing))


async def _close(writers: Sequence[asyncio.StreamWriter], *, hard: bool) -> None:
    """Close them; `hard`: so that the other sides read a reset. Else what was sent still arrives, if it does soon."""
    try:
        for writer in writers:
            channel = writer.get_extra_info("socket")
            if hard and channel is not None and channel.family != socket.AF_UNIX:
                with suppress(OSError):  # it is closed already
                    channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            (writer.transport.abort if hard else writer.close)()
        async with asyncio.timeout(_FAREWELL_SECONDS):
            await asyncio.gather(*[writer.wait_closed() for writer in writers], return_exceptions=True)
    except TimeoutError:
        pass  # nobody reads it
    finally:
        for writer in writers:
            writer.transport.abort()
