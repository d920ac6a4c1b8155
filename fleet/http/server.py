"""The server: the only file that knows Starlette and uvicorn. It lets in, reads, asks the endpoint, and answers."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import Message, Receive, Scope, Send

from fleet import tokens
from fleet.app import Fleet
from fleet.events import ApiListening, DrainStarted, Events, RequestAnswered, RequestBroken
from fleet.http import problem, request
from fleet.http.api import Api
from fleet.http.callers import Callers
from fleet.http.guard import ANY, Guard
from fleet.http.openapi import document, mounted
from fleet.http.order import Order, Orders
from fleet.http.problem import SOON, Problem, problem_of
from fleet.http.routes import ROUTES, Route
from fleet.http.view import Nothing
from fleet.metrics.exposition import plain, render
from fleet.metrics.fleet import FleetMetrics
from fleet.metrics.http import HttpMetrics
from fleet.worker.runner import address_of, spare_the_collector, supervisor_gone
from fleet.worker.systemd import Systemd

BODY_FACTOR = 4  # blank space and escapes make JSON from outside longer than what is stored
_ALWAYS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_OPENAPI = "/openapi.json"


def asgi(
    app: Fleet,
    *,
    token: str | None,
    hosts: Iterable[str] = (ANY,),
    stored_tokens: bool = False,
    allow_unknown: bool = False,
    events: Events | None = None,
) -> Starlette:
    """Return the API of an app as an ASGI program, to be served alone or mounted in another.

    `token` is what clients must send as `Authorization: Bearer …`, or one that `fleet token create` has made;
    `stored_tokens` asks for the latter where `token` is None. Without both everybody is let in: then the program around
    it must decide who may ask. `hosts` are the names that a request may call the server by, without port; default: any.
    `allow_unknown` takes tasks and queues that this app does not have, for other apps' workers.
    """
    return _asgi(
        app, Guard(token, frozenset(hosts), stored_tokens), allow_unknown=allow_unknown, events=events or Events()
    )


def serve(app: Fleet, guard: Guard, listening: socket.socket, events: Events, *, allow_unknown: bool) -> None:
    """Serve on this socket until SIGTERM or SIGINT, which lets running requests end; a second one does not."""
    spare_the_collector()
    program = _asgi(app, guard, allow_unknown=allow_unknown, events=events)
    patience = app.settings.drain_timeout.total_seconds()
    anyio.run(_serve, program, listening, events, patience, backend_options={"use_uvloop": sys.platform != "win32"})


def _asgi(app: Fleet, guard: Guard, *, allow_unknown: bool, events: Events) -> Starlette:
    api, orders = Api(app), Orders(app, allow_unknown=allow_unknown)
    callers = Callers(api, guard)
    answering = _Answering(api, callers, orders, events)
    by_path: dict[str, dict[str, Route]] = defaultdict(dict)
    for route in ROUTES:
        by_path[route.path][route.method] = route
    described = document(ROUTES, orders, guarded=guard.asks)

    async def let_read(request: Request) -> None:
        await callers.admit(request.headers, tokens.Scope.READ)

    async def describe(request: Request) -> Response:
        await let_read(request)
        body = mounted(described, request.scope.get("root_path", ""))
        return Response(body, media_type="application/json", headers=_ALWAYS)

    @asynccontextmanager
    async def lifespan(program: Starlette) -> AsyncIterator[None]:
        yield
        await api.close()

    routes = [_starlette(path, answering, methods) for path, methods in by_path.items()]
    program = Starlette(
        routes=[
            *routes,
            StarletteRoute(_OPENAPI, describe),
            StarletteRoute("/metrics", _metrics(let_read, partial(render, HttpMetrics(events).registry))),
            StarletteRoute("/metrics/fleet", _metrics(let_read, partial(plain, FleetMetrics(app.database).registry))),
        ],
        exception_handlers={HTTPException: _not_routed, Problem: _refused},
        lifespan=lifespan,
    )
    program.router.redirect_slashes = False  # a path that is not in the table is not there
    return program


def _metrics(
    admit: Callable[[Request], Awaitable[None]], tell: Callable[[str], tuple[str, bytes]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that tells metrics. In a thread: the database may be asked, which blocks."""

    async def endpoint(request: Request) -> Response:
        await admit(request)
        kind, text = await anyio.to_thread.run_sync(tell, request.headers.get("accept", ""))
        return Response(text, headers=_ALWAYS | {"Content-Type": kind})

    return endpoint


def _starlette(path: str, answering: "_Answering", methods: Mapping[str, Route]) -> StarletteRoute:
    """Return one path with all its methods, so that a wrong one is told which there are."""

    async def endpoint(request: Request) -> Response:
        return await answering.answer(methods["GET" if request.method == "HEAD" else request.method], request)

    # The name of a queue may hold a slash.
    return StarletteRoute(path.replace("{name}", "{name:path}"), endpoint, methods=[*methods])


class _Answering:
    """Answers requests, each by its route."""

    def __init__(self, api: Api, callers: Callers, orders: Orders, events: Events) -> None:
        self._api = api
        self._callers = callers
        self._orders = orders
        self._events = events
        settings = api.app.settings
        self._bytes_max = BODY_FACTOR * settings.args_bytes_max
        self._patience_seconds = settings.ttl.total_seconds()
        self._bodies = {route: TypeAdapter(route.takes["body"]) for route in ROUTES if "body" in route.takes}

    async def answer(self, route: Route, request: Request) -> Response:
        began = time.monotonic()
        try:
            caller = await self._callers.admit(request.headers, route.scope)
            named = {"caller": caller} if route.names_caller else {}
            view = await route.endpoint(self._api, **named, **await self._parts(route, request))
            headers = _ALWAYS | view.headers(request.scope.get("root_path", ""))
            body = view.model_dump_json(exclude_unset=True, indent=2) + "\n"  # people read it, too
            response = Response(body, route.status, headers, "application/json")
        except Exception as error:  # noqa: BLE001 - whatever an endpoint meets, the client gets an answer
            response = self._problem(route, error)
        self._events.emit(RequestAnswered(route.method, route.path, response.status_code, time.monotonic() - began))
        return response

    async def _parts(self, route: Route, asked: Request) -> dict[str, Any]:
        """Return what the endpoint takes. The path comes first, the body last: it is not read for a wrong address."""
        takes: Mapping[str, type[Any]] = route.takes
        parts: dict[str, Any] = {}
        if "path" in takes:
            parts["path"] = request.path_of(asked, takes["path"])
        query = request.query_of(asked, takes.get("query", Nothing))
        if "query" in takes:
            parts["query"] = query
        if "headers" in takes:
            parts["headers"] = request.headers_of(asked, takes["headers"])
        if "body" in takes:
            ordered = takes["body"] is Order
            parts["body"] = await request.body_of(
                asked,
                self._orders.adapter if ordered else self._bodies[route],
                tagged=ordered and self._orders.tagged,
                bytes_max=self._bytes_max,
                seconds=self._patience_seconds,
            )
        return parts

    def _problem(self, route: Route, error: Exception) -> Response:
        found = problem_of(error)
        if found is None:
            self._events.emit(RequestBroken(route.method, route.path, error))
            found = Problem(500, "defect", "Something is broken here; the log of the server says more.")
        return _written(found)


def _written(found: Problem) -> Response:
    return Response(found.body(), found.status, _ALWAYS | found.headers, problem.MEDIA_TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - it is registered for nothing else
    return _written(error)


async def _not_routed(request: Request, error: Exception) -> Response:
    """Answer for what no route takes: an unknown path, or a method that the path does not have."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for nothing else
    code = HTTPStatus(error.status_code).name.lower()
    return _written(Problem(error.status_code, code, f"See {_OPENAPI} for what there is.", headers=error.headers))


class _Ending:
    """Tells whoever still waits when the server ends that nobody knows how far it got: never that it failed."""

    def __init__(self, program: Starlette) -> None:
        self._program = program

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def watched(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._program(scope, receive, watched)
        except asyncio.CancelledError:
            if began:
                raise
            detail = "The server ended before it was done. Whether it was is not known: see `Idempotency-Key`."
            await _written(Problem(503, "outcome_unknown", detail, headers=SOON))(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn's, but signals are ours: its own handlers raise them again at the end, which would be our exit code."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(program: Starlette, listening: socket.socket, events: Events, patience_seconds: float) -> None:
    config = uvicorn.Config(
        _Ending(program),
        http="h11",
        ws="none",
        lifespan="off",  # it is entered below: uvicorn skips its end where it must hurry
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(patience_seconds)),
    )
    server = _Server(config)

    def end(why: str) -> None:
        if server.should_exit:
            server.force_exit = True
            return
        events.emit(DrainStarted(why))
        server.should_exit = True

    async def obey_signals() -> None:
        async for number in signals:
            end(f"received {signal.Signals(number).name}")

    async def follow_supervisor() -> None:
        await supervisor_gone()
        end("its supervisor is gone")

    systemd = Systemd(os.environ)
    systemd.follow(events)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(obey_signals, name="signals")
            group.start_soon(follow_supervisor, name="supervisor")
            group.start_soon(systemd.feed, name="watchdog")
            events.emit(ApiListening(address_of(listening)))
            async with program.router.lifespan_context(program):
                await server.serve([listening])
            group.cancel_scope.cancel()
