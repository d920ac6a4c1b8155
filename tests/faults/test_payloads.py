"""Names, arguments, results and errors as bad as they can be, through a real worker, a real API and the command line."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from fleet import Settings
from fleet.postgres.database import AsyncConnection
from tests.http.running import ROOT, Running, environment
from tests.processes.crew import until, value

APP = "hostile:app"
LIMIT = Settings().args_bytes_max  # bytes of JSON; that of results is the same
LOUD = 100_000_000  # characters of an error's text
MARKUP = "<script>alert('x')</script>"
NAME = "<img src=x onerror=alert(1)>"
NULL = "NULL"  # what the program below takes for U+0000: it could not be submitted
PROGRAM = f"""
from fleet import Fleet

app = Fleet()


@app.task
async def echo(text: str) -> str:
    return text


@app.task
async def give(kind: str) -> object:
    return {{
        "limit": "x" * ({LIMIT} - 2), "more": "x" * ({LIMIT} - 1), "null": ["a\\x00b"], "object": object(), "set": {{1}},
        "bytes": b"\\xff", "nan": float("nan"),
    }}[kind]


@app.task
def shout(text: str, times: int) -> None:
    raise ValueError(text.replace("{NULL}", "\\x00") * times)


@app.task(name="{NAME}")
async def markup() -> None:
    raise RuntimeError("{MARKUP}\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\x00\\nforged line\\r")
"""


class Deployed(NamedTuple):
    client: httpx.AsyncClient  # of the API
    log: Path  # what the worker says


@pytest.fixture
async def deployed(tmp_path: Path, database_url: str) -> AsyncIterator[Deployed]:
    """A worker process and an API process of that program; the worker must not have lost its lease in the end."""
    (tmp_path / "hostile.py").write_text(PROGRAM)
    environment_ = environment(database_url, PYTHONPATH=os.pathsep.join([str(ROOT), str(tmp_path)]))
    command = ("-m", "fleet", "api", "run", APP, "--log=json", "--port=0")
    with (
        worker(tmp_path, environment_) as log,
        Running(tmp_path, database_url, program=command, PYTHONPATH=environment_["PYTHONPATH"]) as running,
    ):
        address = await asyncio.to_thread(lambda: running.address)
        async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as client:
            yield Deployed(client, log)


@contextmanager
def worker(folder: Path, environment_: dict[str, str]) -> Iterator[Path]:
    log = folder / "worker.log"
    command = [sys.executable, "-m", "fleet", "worker", "run", APP, "--ttl=3s", "--slots=4", "--log-level=debug"]
    with log.open("wb") as words:
        running = subprocess.Popen(command, cwd=folder, env=environment_, stdout=words, stderr=words)
    try:
        yield log
    finally:
        running.terminate()
        code = running.wait(60)
    assert code == 0, log.read_text(errors="replace")[-4000:]


@pytest.mark.fault("Payloads", "a result of exactly the limit, and one byte more")
@pytest.mark.fault("Payloads", "U+0000 in a result")
@pytest.mark.fault("Payloads", "a result that cannot be serialised")
async def test_a_result_at_the_limit_is_kept_and_one_that_cannot_be_is_rejected_and_costs_its_worker_nothing(
    watcher: AsyncConnection, deployed: Deployed
) -> None:
    client = deployed.client
    largest = await submitted(client, "give", kind="limit")
    bad = [await submitted(client, "give", kind=kind) for kind in ("more", "null", "object", "bytes", "nan")]
    sound = await submitted(client, "give", kind="set")  # a set has a form in JSON
    kept = await ended(watcher, client, largest)
    assert (kept["state"], len(json.dumps(kept["result"]))) == ("SUCCEEDED", LIMIT)
    for task in bad:
        shown = await ended(watcher, client, task)
        assert (shown["state"], shown["failure_code"], shown["attempt"]) == ("FAILED", "result_rejected", 1)
    assert (await ended(watcher, client, sound))["result"] == [1]
    assert await of_one_lease(watcher)


@pytest.mark.fault("Payloads", "arguments of exactly the limit, and one byte more")
@pytest.mark.fault("Payloads", "U+0000 in arguments")
@pytest.mark.fault("Payloads", "a body without a length over the limit")
async def test_arguments_at_the_limit_arrive_and_what_is_over_it_or_cannot_be_stored_is_refused_before_it_is_written(
    watcher: AsyncConnection, deployed: Deployed
) -> None:
    client, room = deployed.client, LIMIT - len('{"text":""}')
    largest = await submitted(client, "echo", text="x" * room)
    in_pieces = await posted(client, pieces("y" * room))
    assert in_pieces.status_code == 202, in_pieces.text
    more, null = [await posted(client, body(text)) for text in ("x" * (room + 1), "a\x00b")]
    more_in_pieces, much_more = [await posted(client, pieces("x" * size)) for size in (room + 1, 3 * LIMIT)]
    refused = [more, more_in_pieces, much_more, null]
    assert [answer.status_code for answer in refused] == [413, 413, 413, 422], [each.text for each in refused]
    assert (await ended(watcher, client, largest))["result"] == "x" * room
    assert (await ended(watcher, client, in_pieces.json()["id"]))["result"] == "y" * room
    assert await value(watcher, "SELECT count(*) FROM fleet.task") == 2


@pytest.mark.fault("Payloads", "an error whose text has 100 MB")
@pytest.mark.fault("Payloads", "U+0000 in the text of an error")
async def test_an_error_of_a_hundred_megabytes_is_cut_and_the_lease_outlives_it(
    watcher: AsyncConnection, deployed: Deployed
) -> None:
    client, limit = deployed.client, Settings().error_bytes_max
    texts = ("é", "é\n", NULL)  # in one line, in fifty million, and in nothing that could be stored
    loud = [await submitted(client, "shout", text=text, times=LOUD // len(text)) for text in texts]
    for task in loud:
        shown = await ended(watcher, client, task)
        assert (shown["state"], shown["failure_code"]) == ("FAILED", "handler_error")
        assert "[...]" in shown["failure_reason"]
        assert len(shown["failure_reason"].encode()) <= limit
    assert await of_one_lease(watcher)
    assert deployed.log.stat().st_size < 1_000_000


@pytest.mark.fault("Payloads", "HTML and ANSI in names and errors")
@pytest.mark.fault("Payloads", "U+0000 in the text of an error")
async def test_markup_and_escapes_of_names_and_errors_reach_no_log_terminal_or_page_as_such(
    watcher: AsyncConnection, database_url: str, deployed: Deployed
) -> None:
    client, log = deployed
    task = await submitted(client, NAME)
    shown = await ended(watcher, client, task)
    assert (shown["state"], shown["name"]) == ("FAILED", NAME)
    assert MARKUP in shown["failure_reason"]  # as text, for whoever shows it to escape
    for path in (f"/tasks/{task}", "/tasks", "/dead", "/tasks/<script>"):
        answer = await client.get(path)
        assert answer.headers["Content-Type"] in ("application/json", "application/problem+json"), path
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert harmless(answer.text), path
    for command in (("task", "show", task), ("task", "list"), ("dead", "list")):
        said = await asyncio.to_thread(printed, database_url, *command)
        assert NAME in said or MARKUP in said, command
        assert harmless(said), command
    words = log.read_text()
    assert harmless(words)
    assert not [line for line in words.splitlines() if line.startswith("forged")]


async def submitted(client: httpx.AsyncClient, name: str, **args: Any) -> str:
    answer = await client.post("/tasks", json={"name": name, "args": args})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def posted(client: httpx.AsyncClient, content: bytes | AsyncIterator[bytes]) -> httpx.Response:
    return await client.post("/tasks", content=content, headers={"Content-Type": "application/json"})


def body(text: str) -> bytes:
    return json.dumps({"name": "echo", "args": {"text": text}}).encode()


async def pieces(text: str) -> AsyncIterator[bytes]:
    """Send a body whose length nobody has been told."""
    whole = body(text)
    for at in range(0, len(whole), 65536):
        yield whole[at : at + 65536]


async def ended(watcher: AsyncConnection, client: httpx.AsyncClient, task: str) -> dict[str, Any]:
    """Wait until the task is terminal, and return what the API shows of it."""
    await until(watcher, "SELECT state NOT IN ('QUEUED', 'RUNNING') FROM fleet.task WHERE id = %s", task, seconds=60)
    shown: dict[str, Any] = (await client.get(f"/tasks/{task}")).json()
    return shown


async def of_one_lease(watcher: AsyncConnection) -> bool:
    """Tell whether everything so far was done under one lease, which is good."""
    return bool(await value(watcher, "SELECT array_agg(state) = '{LIVE}' FROM fleet.lease"))


def harmless(text: str) -> bool:
    return not any(escape in text for escape in ("\x1b", "\x9b", "\x07", "\x00"))


def printed(database_url: str, *command: str) -> str:
    """What a command of this very code says."""
    environment_ = environment(database_url, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-m", "fleet", *command], env=environment_, capture_output=True, text=True, check=True
    )
    return done.stdout
