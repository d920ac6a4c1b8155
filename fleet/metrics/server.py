"""A small server inside a worker's process, in threads of its own: it answers also while the event loop stands still.

That is when it is needed most, so it is not uvicorn in the worker's loop; and each request costs handlers next to nothing.
"""

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry

from fleet.metrics.exposition import plain, render
from fleet.worker.standing import Standing

REQUESTS_MAX = 8  # at once; more are turned away
PATIENCE_SECONDS = 5.0  # for what a client has to say
_TEXT = "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]
Page = Callable[[str], Answer]


@contextmanager
def serving(
    listening: socket.socket, standing: Callable[[], Standing], process: CollectorRegistry, fleet: CollectorRegistry
) -> Iterator[None]:
    """Answer on this socket: `/metrics` and `/metrics/fleet` from two registries, `/livez` and `/readyz` by the standing."""
    pages: dict[str, Page] = {
        "/metrics": lambda accept: (HTTPStatus.OK, *render(process, accept)),
        "/metrics/fleet": lambda accept: (HTTPStatus.OK, *plain(fleet, accept)),
        "/livez": lambda accept: _probe(standing().live, "alive", "the event loop stands still"),
        "/readyz": lambda accept: _probe(standing().ready, "ready", "no lease is held, or the worker drains"),
    }
    server = _Server(listening, pages)
    thread = threading.Thread(target=server.serve_forever, name="fleet-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _probe(good: bool, word: str, why: str) -> Answer:
    if good:
        return HTTPStatus.OK, _TEXT, f"{word}\n".encode()
    return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"not {word}: {why}\n".encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, pages: Mapping[str, Page]) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.pages = pages
        self._places = threading.BoundedSemaphore(REQUESTS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that goes away: that is nobody's trouble."""
        if not isinstance(sys.exception(), OSError):
            sys.excepthook(*sys.exc_info())


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "fleet"
    sys_version = ""
    timeout = PATIENCE_SECONDS

    def do_GET(self) -> None:
        """Answer with the page of this path."""
        status: int
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            status, kind, body = HTTPStatus.NOT_FOUND, _TEXT, f"there is {', '.join(self.server.pages)}\n".encode()
        else:
            status, kind, body = page(self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's own name
        """Scrapes and probes come every few seconds: not a line for each."""
