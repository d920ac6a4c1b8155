"""Serves the shop on a socket that listens already, and kills itself where a request asks for it by a header.

It does so after the endpoint has done its work, and before the first byte of the answer: `python -m tests.http.doomed FD`.
"""

import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from fleet.http.server import asgi
from tests.http.shop import app

Message = MutableMapping[str, Any]
PROGRAM = asgi(app, token=None)


async def doomed(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    async def last(message: Message) -> None:
        if message["type"] == "http.response.start" and any(name == b"doom" for name, _ in scope["headers"]):
            os.kill(os.getpid(), signal.SIGKILL)
        await send(message)

    await PROGRAM(scope, receive, last)


if __name__ == "__main__":
    uvicorn.Server(uvicorn.Config(doomed)).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
