"""The demo itself: a fleet at work, the death of one worker, and what the others make of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, TypeVar

from sqlalchemy import Connection

from fleet.config import Settings
from fleet.demo import outbox, questions
from fleet.demo.errors import DemoError
from fleet.demo.plan import Plan
from fleet.demo.questions import Held, Holder
from fleet.demo.report import Facts, Report, report
from fleet.demo.steps import DatabaseReady, Drained, Finished, Killed, Settled, Step, Submitted, WorkersReady
from fleet.demo.tasks import PACE, analyze, app, publish
from fleet.demo.workers import Crew
from fleet.postgres import migrate
from fleet.postgres.database import Database

T = TypeVar("T")

_POLL_SECONDS = 0.01
_PATIENCE = timedelta(seconds=60)  # for what takes a second or two where the machine has time
_ROLE = "demo"


class Scenario:
    """Runs once; `began` is when, on the monotonic clock.

    `tell` hears of every step, `progress` of how many tasks out of how many are through.
    """

    _connection: Connection  # in autocommit: each question sees the newest; there while `run` runs

    def __init__(
        self,
        plan: Plan,
        database_url: str,
        *,
        began: float,
        folder: Path,
        outbox_path: Path,
        tell: Callable[[Step], None],
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._plan = plan
        self._began = began
        self._url = database_url
        self._settings = Settings()
        self._database = Database(database_url, self._settings)
        self._folder = folder
        self._outbox = outbox_path
        self._tell = tell
        self._progress = progress
        self._publishing: set[str] = set()  # the ids of our publish tasks: the outbox may hold lines of others

    def run(self) -> Report:
        """Play it all. Raises DemoError where it cannot go on; whatever happens, no worker is left behind."""
        self._prepare()
        environment = {outbox.VARIABLE: str(self._outbox), PACE: str(self._plan.pace.total_seconds())}
        crew = Crew(self._url, self._folder, ttl=self._plan.ttl, slots=self._plan.slots, environment=environment)
        with self._database.engine(_ROLE).connect() as connection, crew:
            self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            self._start_workers(crew)
            self._submit()
            victim = self._kill_one(crew)
            self._await_reaper(crew, victim)
            facts = self._await_end(crew, victim)
            exit_codes = crew.drain()
            self._tell(Drained(exit_codes))
        return report(facts, exit_codes, time.monotonic() - self._began)

    def _prepare(self) -> None:
        with self._database.reachable():
            self._database.connect_sync(_ROLE).close()
        migrate.upgrade(self._database)
        with self._database.engine(_ROLE).connect() as connection:
            if not questions.is_empty(connection):
                raise DemoError(
                    f"the database ({self._database.address}) has tasks or workers of a fleet already: "
                    "name another one, or leave --database-url out"
                )
        app.use(self._database, self._settings)
        self._tell(DatabaseReady())

    def _start_workers(self, crew: Crew) -> None:
        for number in range(1, self._plan.workers + 1):
            crew.start(f"worker-{number}")

        def all_there() -> list[Holder]:
            found = questions.workers(self._connection)
            return found if len(found) == self._plan.workers else []

        ready = self._until(all_there, crew) or self._give_up("the workers did not get their leases")
        self._tell(WorkersReady(tuple(ready), self._plan.ttl, self._plan.slots))

    def _submit(self) -> None:
        # In a thread, so that an interruption, which comes to this one, meets no event loop half-way.
        with ThreadPoolExecutor(1) as executor:
            executor.submit(lambda: asyncio.run(self._submit_all())).result()
        self._tell(Submitted(len(self._plan.texts), self._plan.tasks, self._outbox))

    async def _submit_all(self) -> None:
        texts = [text._asdict() for text in self._plan.texts]
        async with app:
            for begin in range(0, len(texts), self._plan.batch):
                batch = texts[begin : begin + self._plan.batch]
                await app.submit_many(analyze, batch)
                self._publishing |= {str(task.id) for task in await app.submit_many(publish, batch)}
                self._progress("submitted", 2 * (begin + len(batch)), self._plan.tasks)

    def _kill_one(self, crew: Crew) -> Holder:
        """Kill a worker at a moment at which it certainly runs tasks of both kinds."""
        self._until(lambda: self._done() >= self._plan.tasks // 4, crew)  # by now tasks do not begin in step any more
        victim = self._until(lambda: self._caught(crew), crew) or self._give_up("no worker ran both kinds of task")
        crew.kill(victim.worker)
        # What the worker had sent may still take effect; when its sessions are gone, what it held stands still.
        name = crew.session_name(victim.worker)
        self._until(lambda: not questions.sessions(self._connection, name), crew, self._plan.ttl / 3)
        self._tell(Killed(victim, tuple(questions.held(self._connection, victim.lease_id))))
        return victim

    def _caught(self, crew: Crew) -> Holder | None:
        """Return a worker that runs both kinds, stopped so that it cannot finish them before it is killed."""
        done = self._done()
        if done == self._plan.tasks:
            raise DemoError(
                "all tasks had ended before a worker was caught with both kinds: is the machine overloaded?"
            )
        for holder in questions.running_both(self._connection, self._plan.fresh):
            crew.stop(holder.worker)
            still = questions.running_both(self._connection, self._plan.fresh, holder.lease_id)
            if still and (self._is_telling(holder) or done > self._plan.tasks // 2):
                return still[0]
            crew.resume(holder.worker)
        return None

    def _is_telling(self, holder: Holder) -> bool:
        """Whether some of its publish tasks have reached the outbox and some have not: then one sees what is at stake."""
        running = {str(task.id) for task in questions.held(self._connection, holder.lease_id) if task.name == "publish"}
        reached = running & {line["task"] for line in outbox.read(self._outbox)}
        return bool(reached) and reached != running

    def _await_reaper(self, crew: Crew, victim: Holder) -> None:
        """Wait until nothing of what the dead worker held is left to it."""

        def settled() -> list[Held]:
            self._done()
            held = questions.held(self._connection, victim.lease_id)
            return held if all(task.at for task in held) else []

        held = self._until(settled, crew) or self._give_up(f"nobody settled the tasks of {victim.worker}")
        after = max(task.at for task in held if task.at) - victim.now
        self._tell(Settled(victim, tuple(held), tuple(questions.accusers(self._connection)), after))

    def _await_end(self, crew: Crew, victim: Holder) -> Facts:
        """Wait until every task has ended, and find out how. Where the patience ends first, the facts show it."""
        self._until(lambda: self._done() == self._plan.tasks, crew, _PATIENCE + self._plan.tasks * self._plan.pace)
        facts = Facts(
            submitted=self._plan.tasks,
            counts=questions.counts(self._connection),
            victim=victim,
            held=tuple(questions.held(self._connection, victim.lease_id)),
            published=frozenset(questions.succeeded(self._connection, "publish")),
            outbox=Counter(line["task"] for line in outbox.read(self._outbox) if line["task"] in self._publishing),
            ttl=self._plan.ttl,
        )
        self._tell(Finished(facts))
        return facts

    def _done(self) -> int:
        done = questions.counts(self._connection).terminal
        self._progress("done", done, self._plan.tasks)
        return done

    def _until(self, question: Callable[[], T], crew: Crew, patience: timedelta = _PATIENCE) -> T | None:
        """Ask until the answer is true; None where the patience is over before."""
        deadline = time.monotonic() + patience.total_seconds()
        while not (answer := question()):
            crew.check()
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_SECONDS)
        return answer

    def _give_up(self, what: str) -> NoReturn:
        raise DemoError(f"{what} within {_PATIENCE.total_seconds():g} s: is the machine overloaded?")
