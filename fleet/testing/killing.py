"""Kill the one replica that is inside a handler, for real, and see what becomes of its task."""

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg

from fleet.app import Task
from fleet.cli.application import load_app
from fleet.config import Settings
from fleet.errors import ConfigurationError
from fleet.postgres import scratch
from fleet.postgres.database import Database
from fleet.task import State
from fleet.testing.eyes import Eyes
from fleet.testing.faultpoints import FaultPoints
from fleet.testing.pointed import Pointed
from fleet.testing.replicas import TTL_SECONDS, Crew, Driver, replicas
from fleet.testing.sink import Effect, Sink
from fleet.testing.waiting import PATIENCE_SECONDS, until
from fleet.verify.dump import dump_sync
from fleet.verify.history import VARIABLE as HISTORY
from fleet.verify.history import Recorder, lines
from fleet.verify.reading import read
from fleet.verify.story import tell

_REAP_PERIODS = 2.4  # so many of TTL / 6 may pass between the end of a lease and the end of what it held
When = Literal["entered", "returned"]
_POINTS: Mapping[When, str] = {"entered": "handler.enter", "returned": "handler.leave"}


@dataclass(frozen=True, slots=True)
class Killed:
    """What became of a task whose worker was killed. Times are in seconds."""

    task: UUID
    point: str  #: where the worker stood when it was killed
    pid: int
    worker: str
    lease: UUID
    state: State  #: in the end
    failure_code: str | None
    failure_reason: str | None = field(repr=False)
    starts: int  #: how often the handler was started
    seconds: float  #: from the kill until the task was taken from the dead: put back or FAILED
    seconds_max: float  #: what is promised for that: TTL + 2.4 · TTL / 6
    effects: tuple[Effect, ...]  #: what its handler reported by `fleet.testing.report`, all attempts together
    attempts: tuple[dict[str, Any], ...] = field(repr=False)  #: of those that did not simply succeed: how each ended
    late: tuple[dict[str, Any], ...] = field(repr=False)  #: reports that were refused: none, unless something was amiss
    log: str = field(repr=False)  #: what the killed worker had written
    told: str = field(repr=False)

    def story(self) -> str:
        """Print all that is known of the task, in the order of time; return it, too."""
        print(self.told)  # noqa: T201 - what it is for
        return self.told


def kill_one_replica(
    app: str,
    during: str,
    *,
    database_url: str,
    arguments: Mapping[str, Any] | None = None,
    when: When = "returned",
    point: str | None = None,
    replicas: int = 2,
    driver: Driver = "process",
    environment: Mapping[str, str] | None = None,
    ttl_seconds: float = TTL_SECONDS,
    history: Path | str | None = None,
    seconds: float = PATIENCE_SECONDS,
) -> Killed:
    """Run replicas of `app` (`module:app`), submit the task `during`, and end by SIGKILL the one that is inside its handler.

    Returns once the task is terminal again: run to its end by another replica, or FAILED. The replica is killed when the
    handler is `entered`, has `returned` (nothing is reported yet), or stands at a `point` of your own: a call of
    `faultpoint("charge.paid")` in its code. `history`, a folder, keeps the run for `fleet verify`. The database must have
    the schema. Raises TimeoutError where `seconds` pass without a step forward.
    """
    if replicas < 2:
        raise ConfigurationError("at least two replicas are needed: one is killed, another must take over")
    fleet = load_app(app)
    if during not in fleet.handlers:
        raise ConfigurationError(f"{app} has no task {during!r}; it has: {', '.join(sorted(fleet.handlers))}")
    where = point or f"{_POINTS[when]}:{during}"
    with ExitStack() as stack:
        folder = Path(history) if history is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        points = stack.enter_context(FaultPoints(where))
        sink = stack.enter_context(Sink(history=folder))
        given = dict(environment or {}) | points.environment | sink.environment | {HISTORY: str(folder)}
        crew = stack.enter_context(
            _replicas(app, replicas, database_url, driver=driver, environment=given, ttl_seconds=ttl_seconds)
        )
        database = Database(database_url, Settings())
        eyes = stack.enter_context(closing(Eyes(database)))
        recorder = stack.enter_context(closing(Recorder(folder, "test")))
        with Pointed(fleet, database_url):
            task = _submit(Task(fleet, fleet.handlers[during]), arguments or {}, recorder)
        scene = _Scene(database, eyes, crew, points, sink, recorder, folder, seconds)
        return scene.kill(task, where, ttl_seconds * (1 + _REAP_PERIODS / 6))


_replicas = replicas  # `replicas=` is the better name for a number, too


def _submit(task: Task[..., Any], arguments: Mapping[str, Any], recorder: Recorder) -> UUID:
    """Submit it, and write that down as every client does whose history is judged."""
    args = json.loads(task.handler.encode(arguments, task.app.settings.args_bytes_max))
    said = {"op": str(uuid4()), "name": task.handler.name, "args": args, "queue": task.handler.queue}
    recorder.write("submit", phase="invoke", **said)
    ref = task.submit_sync(**arguments)
    recorder.write("submit", phase="ok", **said, task=str(ref.id))
    return ref.id


@dataclass(frozen=True, slots=True)
class _Scene:
    database: Database
    eyes: Eyes
    crew: Crew
    points: FaultPoints
    sink: Sink
    recorder: Recorder
    folder: Path
    patience: float

    def kill(self, task: UUID, where: str, seconds_max: float) -> Killed:
        """Wait until the handler stands there, kill its worker, and wait until the task has come to its end."""
        self.points.wait(where, self.patience)
        lease = self._row(task)["lease_id"]
        victim = self.crew.holder(lease)
        pid = self.crew[victim].pid
        self.crew.kill(victim)
        killed_at = time.monotonic()
        self._note("killed", task, worker=self.crew[victim].name, pid=pid, lease=lease, point=where)
        self.points.release_all()
        taken = until(lambda: self._taken_from(task, lease), f"the end of lease {lease}", self.patience)
        seconds = time.monotonic() - killed_at
        self._note("taken from the dead", task, seconds=round(seconds, 3), state=taken["state"])
        until(lambda: State(self._row(task)["state"]).terminal, f"the end of task {task}", self.patience)
        self._note("ended", task, state=self._row(task)["state"])
        return self._killed(task, where, victim, pid, lease, seconds, seconds_max)

    def _killed(
        self, task: UUID, where: str, victim: int, pid: int, lease: UUID, seconds: float, seconds_max: float
    ) -> Killed:
        row, attempts = self._row(task), self.eyes.ask(scratch.attempts(task))
        with psycopg.connect(self.database.conninfo("testing")) as connection:
            dump_sync(connection, self.folder)
        return Killed(
            task=task,
            point=where,
            pid=pid,
            worker=self.crew[victim].name,
            lease=lease,
            state=State(row["state"]),
            failure_code=row["failure_code"],
            failure_reason=row["failure_reason"],
            starts=sum(line["what"] == "started" and line["task"] == str(task) for line in lines(self.folder)),
            seconds=seconds,
            seconds_max=seconds_max,
            effects=tuple(self.sink.of(task)),
            attempts=tuple(each for each in attempts if not each["late"]),
            late=tuple(each for each in attempts if each["late"]),
            log=self.crew.log(victim),
            told=tell(read(self.folder), str(task)),
        )

    def _taken_from(self, task: UUID, lease: UUID) -> dict[str, Any] | None:
        row = self._row(task)
        return None if row["lease_id"] == lease else row

    def _row(self, task: UUID) -> dict[str, Any]:
        return self.eyes.ask(scratch.holder(task))[0]

    def _note(self, what: str, task: UUID, **facts: Any) -> None:
        self.recorder.write(what, task=str(task), **facts)
