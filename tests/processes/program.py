"""A worker program whose handlers do what the test tells them, line by line, over a socket that the test owns.

Whatever a handler does to the world outside is one line, appended to a file outside the database by one O_APPEND write.
"""

import asyncio
import ctypes
import json
import os
import re
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from fleet import Context, Fail, Fleet, Retry
from fleet.events import Events
from fleet.verify import history
from fleet.worker import runner, supervisor

app = Fleet()
COMMAND = (sys.executable, "-m", "tests.processes.program")


def record(context: Context, kind: str) -> None:
    """Append one numbered fact: the file's line numbers are the order in which the world saw them."""
    line = f"{kind} {context.task_id} {context.attempt} {os.getpid()}\n".encode()
    descriptor = os.open(os.environ["SINK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def enter_stage(context: Context, text: str) -> socket.socket:
    """Tell the test who is here; from now on it says what happens."""
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(os.environ["STAGE"])
    who = {"task": str(context.task_id), "attempt": context.attempt, "pid": os.getpid(), "text": text}
    channel.send(json.dumps(who).encode() + b"\n")
    return channel


def leave_a_child_behind() -> None:
    """A child that outlives its parent and has every file of it open, the sockets too."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)


# What ends the process, or holds the thread: the answer goes out first.
DEEDS: dict[str, Callable[[str], object]] = {
    "exit": lambda code: os._exit(int(code)),
    "abort": lambda _: os.abort(),
    "segfault": lambda _: ctypes.string_at(0),
    "block": lambda seconds: time.sleep(float(seconds)),
    "hog": lambda seconds: hog(float(seconds)),
    "spin": lambda seconds: spin(float(seconds)),
    "print": lambda size: print("x" * int(size), flush=True),
    "fork": lambda _: leave_a_child_behind(),
    "nice": lambda by: os.nice(int(by)),
}


def hog(seconds: float) -> None:
    """Hold the interpreter for one operation of C code that takes at least so long: every thread stands still."""
    size, took = 16, 0.0
    while took < seconds / 4:
        size += 1
        began = time.monotonic()
        re.match("(a+)+$", "a" * size + "b")
        took = time.monotonic() - began
    re.match("(a+)+$", "a" * (size + 2) + "b")  # each letter doubles it


def spin(seconds: float) -> None:
    """Keep the processor and, as far as Python lets it, the interpreter."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(200_000))


def obey(context: Context, channel: socket.socket, line: str) -> tuple[Any] | None:
    """Do one thing that was ordered; a tuple is what the handler returns."""
    order, _, argument = line.partition(" ")
    match order:
        case "return":
            return (json.loads(argument),)
        case "fail":
            raise Fail(argument)
        case "raise":
            raise RuntimeError(argument)
        case "retry":
            raise Retry("the test said so", after=float(argument))
        case "effect":
            record(context, "effect")
            channel.send(b"ok\n")
        case _:
            channel.send(b"ok\n")
            DEEDS[order](argument)
    return None


async def play(context: Context, text: str) -> Any:
    record(context, "start")
    loop = asyncio.get_running_loop()
    with enter_stage(context, text) as channel:
        channel.setblocking(False)
        heard = b""
        while True:
            while b"\n" not in heard:
                part = await loop.sock_recv(channel, 4096)
                if not part:
                    raise RuntimeError("the stage is gone")
                heard += part
            line, _, heard = heard.partition(b"\n")
            if line == b"swallow":
                channel.send(b"ok\n")
                await never_end()
            result = obey(context, channel, line.decode())
            if result is not None:
                return result[0]


async def never_end() -> None:
    """Swallow every cancellation."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


def play_in_thread(context: Context, text: str) -> Any:
    record(context, "start")
    with enter_stage(context, text) as channel, channel.makefile("r") as orders:
        for line in orders:
            result = obey(context, channel, line.rstrip("\n"))
            if result is not None:
                return result[0]
    raise RuntimeError("the stage is gone")


@app.task(idempotent=True)
async def act(context: Context, text: str = "") -> Any:
    return await play(context, text)


@app.task
async def act_once(context: Context, text: str = "") -> Any:
    return await play(context, text)


@app.task(idempotent=True)
def act_in_thread(context: Context, text: str = "") -> Any:
    return play_in_thread(context, text)


@app.task
def act_in_thread_once(context: Context, text: str = "") -> Any:
    return play_in_thread(context, text)


@app.task
async def analyze(context: Context, text: str) -> dict[str, int]:
    """The task service that this project grew from: counts words, at a moment that the test chooses."""
    await play(context, text)
    return {"words": len(text.split())}


async def work(context: Context, milliseconds: float) -> int:
    record(context, "start")
    await asyncio.sleep(milliseconds / 1000)
    record(context, "effect")
    return context.attempt


@app.task(idempotent=True)
async def quick(context: Context, milliseconds: float = 0) -> int:
    return await work(context, milliseconds)


@app.task
async def quick_once(context: Context, milliseconds: float = 0) -> int:
    return await work(context, milliseconds)


@app.task(idempotent=True)
async def retried(context: Context) -> int:
    if context.attempt == 1:
        raise Retry("the first attempt always is", after=0)
    return context.attempt


@app.task(idempotent=True)
async def poison(context: Context) -> None:
    record(context, "start")
    os._exit(9)


def main() -> int:
    """`supervise N` runs N workers as children; else this process is one worker."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    events = Events()
    if sys.argv[1:2] == ["supervise"]:
        history.record_where_asked(events, os.environ, f"supervisor {os.getpid()}")
        commands = [supervisor.Command(f"worker {number}", COMMAND) for number in range(int(sys.argv[2]))]
        return supervisor.run(commands, app.database, app.settings, events)
    history.record_where_asked(events, os.environ, handlers=app.handlers)
    queues = [name for name in os.environ.get("QUEUES", "").split(",") if name]
    return runner.run(app.worker(queues=queues, name=os.environ.get("WORKER_NAME"), events=events))


if __name__ == "__main__":
    sys.exit(main())
