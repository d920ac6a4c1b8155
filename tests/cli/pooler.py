"""A pooler at its worst: it forwards sessions, but drops what they ask for at their start, and notifications."""

import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104
_NOTIFICATION = b"A"


@contextmanager
def pooler(server_url: str) -> Iterator[str]:
    """Lend the URL of a pooler before this database. Cancel requests and encryption are refused."""
    parts = urlsplit(server_url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=_accept, args=(listener, (parts.hostname, parts.port)), daemon=True)
        thread.start()
        yield re.sub(r"@[^/]*/", f"@127.0.0.1:{port}/", server_url)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _accept(listener: socket.socket, server: tuple[str | None, int | None]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_session, args=(client, server), daemon=True).start()


def _session(client: socket.socket, server: tuple[str | None, int | None]) -> None:
    with suppress(OSError, EOFError), client:
        while True:
            (length,) = struct.unpack("!i", _exactly(client, 4))
            body = _exactly(client, length - 4)
            if struct.unpack("!i", body[:4])[0] not in (_SSL_REQUEST, _GSS_REQUEST):
                break
            client.sendall(b"N")
        with socket.create_connection((str(server[0]), int(server[1] or 0))) as upstream:
            words = body[4:].split(b"\0")
            pairs = [pair for pair in zip(words[::2], words[1::2], strict=False) if pair[0] not in (b"", b"options")]
            kept = body[:4] + b"".join(name + b"\0" + value + b"\0" for name, value in pairs) + b"\0"
            for stream in (client, upstream):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            upstream.sendall(struct.pack("!i", len(kept) + 4) + kept)
            threading.Thread(target=_answers, args=(upstream, client), daemon=True).start()
            while data := client.recv(65536):
                upstream.sendall(data)


def _answers(upstream: socket.socket, client: socket.socket) -> None:
    with suppress(OSError, EOFError):
        while True:
            kind, length = _exactly(upstream, 1), _exactly(upstream, 4)
            message = _exactly(upstream, struct.unpack("!i", length)[0] - 4)
            if kind != _NOTIFICATION:
                client.sendall(kind + length + message)


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = stream.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
