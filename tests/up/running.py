"""A real `fleet up`, with all that it starts, found by a token in its environment and always taken away."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil

from tests.support import PATIENCE_SECONDS, eventually_sync

ROOT = Path(__file__).resolve().parents[2]
SHOP = """
import asyncio
from pathlib import Path
from fleet import Fleet

app = Fleet()


@app.task(idempotent=True)
async def add(a: int, b: int) -> int:
    return a + b


@app.task
async def hold(started: str, until: str) -> str:
    Path(started).touch()
    while not Path(until).exists():
        await asyncio.sleep(0.01)
    return "held"
"""


def own_terminal() -> None:
    """Make standard input the terminal of this session, whose keys reach its processes: the first one opened is."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))


class Up:
    """One call of `fleet up`, in a session of its own; what it says goes to a file, or to the terminal lent."""

    def __init__(
        self, folder: Path, *arguments: str, log: str = "json", terminal: int | None = None, **settings: str
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.token = uuid4().hex
        self.log = folder / f"{self.token}.log"
        (folder / "shop.py").write_text(SHOP)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLEET_", "PG"))}
        environment |= {"PYTHONPATH": str(ROOT), "FLEET_TTL": "6s", "FLEET_DATA": str(self.data), "UP": self.token}
        environment |= {f"FLEET_{name.upper()}": value for name, value in settings.items()}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fleet", "up", "--port=0", *([f"--log={log}"] if log else []), *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=output,
                stderr=output if terminal is None or log else terminal,
                start_new_session=True,
                preexec_fn=None if terminal is None else own_terminal,  # noqa: PLW1509 - this process has one thread
            )

    @property
    def words(self) -> str:
        return self.log.read_text(errors="replace")

    def said(self, message: str) -> list[dict[str, Any]]:
        """The lines of the JSON log with this message."""
        *lines, _ = self.words.split("\n")
        return [line for line in map(json.loads, lines) if line["message"] == message]

    def wait_for(self, message: str, times: int = 1) -> dict[str, Any]:
        """Return the newest line with this message, as soon as there are so many."""

        def probe() -> list[dict[str, Any]]:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.words}"
            found = self.said(message)
            return found if len(found) >= times else []

        return eventually_sync(probe, 2 * PATIENCE_SECONDS)[-1]

    def ready(self) -> "Up":
        """Return when it says that it is up."""
        self.wait_for("fleet is up")
        return self

    @property
    def address(self) -> str:
        return str(self.wait_for("fleet is up")["address"])

    def pid_of(self, name: str) -> int:
        """The pid of the child of this name that was started last."""
        return int([line["pid"] for line in self.said("process started") if line["name"] == name][-1])

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        with httpx.Client(base_url=self.address, trust_env=False, timeout=PATIENCE_SECONDS) as client:
            return client.request(method, path, json=body)

    def submit(self, name: str, **arguments: Any) -> str:
        answer = self.call("POST", "/tasks", {"name": name, "args": arguments})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def task(self, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/tasks/{task_id}").json()
        return found

    def runs_a_task(self) -> None:
        """Submit one and see it end well."""
        task_id = self.submit("add", a=1, b=2)
        eventually_sync(lambda: self.task(task_id)["state"] == "SUCCEEDED")
        assert self.task(task_id)["result"] == 3

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Return its exit code when it has ended by itself."""
        try:
            return int(self.process.wait(PATIENCE_SECONDS))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.words}") from None

    def left(self) -> list[str]:
        """The command lines of what still runs: what has our token, and PostgreSQL, which has only the folder."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                command = process.cmdline()
                is_ours = str(self.data) in " ".join(command) or process.environ().get("UP") == self.token
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(command))
        return found

    def clean_up(self) -> None:
        """End it in order if it lets us, and wait until nothing is left."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_SECONDS)
        self.process.kill()
        self.process.wait()
        eventually_sync(lambda: not self.left())
