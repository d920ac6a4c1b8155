"""PostgreSQL's wire protocol, as far as it must be understood to see statements cross, and their answers come back."""

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102


class Frame(NamedTuple):
    """One message: its type (`start`, `encrypt` and `cancel` for those that have none on the wire), and all its bytes."""

    kind: str
    raw: bytes

    @property
    def body(self) -> bytes:
        return self.raw[5:]


class Decoder:
    """Cuts a stream of bytes into messages. `starting`: it is a client's, and begins without types."""

    def __init__(self, *, starting: bool) -> None:
        self._starting = starting
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take some bytes in and return the messages that are complete now."""
        self._bytes += data
        frames: list[Frame] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        head = 0 if self._starting else 1
        if len(self._bytes) < head + 4:
            return None
        length = head + int(struct.unpack_from("!I", self._bytes, head)[0])
        if len(self._bytes) < length:
            return None
        raw = bytes(self._bytes[:length])
        del self._bytes[:length]
        return self._untyped(raw) if self._starting else Frame(chr(raw[0]), raw)

    def _untyped(self, raw: bytes) -> Frame:
        code = int(struct.unpack_from("!I", raw, 4)[0])
        if code in (SSL_REQUEST, GSS_REQUEST):
            return Frame("encrypt", raw)
        if code == CANCEL_REQUEST:
            return Frame("cancel", raw)
        self._starting = False
        return Frame("start", raw)


@dataclass(slots=True, eq=False)
class Exchange:
    """What a client sends until it waits, and the server answers until it is ready for the next query."""

    statements: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)  #: what the server said: `SELECT 1`, or `ERROR 40001`
    extended: bool = False  #: of the extended protocol: it ends with a Sync
    mark: Any = None  #: whoever is interested in its end


class Conversation:
    """What the client of one session has asked, and how far the server has answered. Give it every message, in order."""

    def __init__(self) -> None:
        self.asking = Exchange()  #: what the client is sending
        self._asked: deque[Exchange] = deque()
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._copying = False  # the server is in a COPY FROM of the extended protocol: it ignores a Sync

    @property
    def answering(self) -> Exchange | None:
        """What the server is answering."""
        return self._asked[0] if self._asked else None

    def asks(self, frame: Frame) -> str | None:
        """Return the statement that this message of the client's lets the server run, if it does.

        It belongs to `asking`, until `sent` is told that the message has gone.
        """
        match frame.kind:
            case "P":
                name, sql, _ = frame.body.split(b"\0", 2)
                self._prepared[name] = _text(sql)
            case "B":
                portal, name, _ = frame.body.split(b"\0", 2)
                self._portals[portal] = self._prepared.get(name, "")
            case "E":
                return self._runs(self._portals.get(frame.body.split(b"\0", 1)[0], ""))
            case "Q":
                return self._runs(_text(frame.body[:-1]))
        return None

    def sent(self, frame: Frame) -> None:
        """Take note that this message has gone to the server."""
        if frame.kind == "S" and self._copying:
            self._copying = False
        elif frame.kind in ("start", "Q", "S", "F"):
            self.asking.extended = frame.kind == "S"
            self._asked.append(self.asking)
            self.asking = Exchange()

    def answers(self, frame: Frame) -> bool:
        """Take note of a message of the server's; True where it ends the answer to an exchange."""
        exchange = self.answering
        match frame.kind:
            case "C" if exchange is not None:
                exchange.tags.append(_text(frame.body[:-1]))
            case "E" if exchange is not None:
                exchange.tags.append(f"ERROR {_sqlstate(frame.body)}")
            case "G":
                self._copying = exchange is not None and exchange.extended
            case "Z" if exchange is not None:
                self._asked.popleft()
                return True
        return False

    def _runs(self, sql: str) -> str:
        self.asking.statements.append(sql)
        return sql


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _sqlstate(body: bytes) -> str:
    fields = {part[:1]: part[1:] for part in body.split(b"\0")}
    return _text(fields.get(b"C", b""))
