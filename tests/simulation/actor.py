"""One participant: its session, whose statements wait for their cue, and the statement that is under way."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, cast

import psycopg
from psycopg.pq import Format

from fleet.postgres.database import AsyncConnection, Row
from tests.simulation.story import name_of

if TYPE_CHECKING:
    from tests.simulation.conductor import Conductor


class Violation(Exception):
    """Something happened that must not. Says what, and everything that led to it."""


class How(StrEnum):
    """How a step is taken. What comes after a statement that was left open: COMMIT, LOST, KILL, ABANDON or DIE."""

    WHOLE = "whole"
    OPEN = "left open"
    COMMIT = "commits"
    LOST = "done, but its reply is lost"
    UNSENT = "never sent: the connection is lost"
    KILL = "its session is killed"
    ABANDON = "its client gives up, the statement goes on"
    DIE = "its process dies"


class Statement(psycopg.AsyncCursor[Row]):
    """A session's cursor: each statement first waits for the cue of the session's actor."""

    async def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        actor = cast("Session", self.connection).actor
        run = super().execute

        async def send() -> None:
            await run(query, params, prepare=prepare, binary=binary)

        await (send() if actor is None else actor.perform(cast("Session", self.connection), bytes(query), send))
        return self


class Session(AsyncConnection):
    """A connection that belongs to one actor during one schedule, and then to another."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.statements = Statement(self)
        self.statements.format = Format.BINARY
        self.actor: Actor | None = None
        self.spoilt = False

    async def close(self) -> None:
        """Leave it to the theatre, while it is lent: to the server, a session that does nothing is as good as gone."""
        if self.actor is None:
            await super().close()


class Flight:
    """One statement that was let go: on its way, open (done, not committed), or over. Its client may be gone."""

    def __init__(self, actor: "Actor", session: Session, name: str, send: Callable[[], Awaitable[None]]) -> None:
        self.actor, self.session, self.name = actor, session, name
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open = self.over = self.killed = self.orphan = False
        self.error: Exception | None = None  # what its client is told, whatever becomes of it
        self._send = send
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fly(self, how: How, trouble: Callable[[BaseException], None]) -> None:
        if how is How.LOST:
            self.error = lost("the reply was lost")
        try:
            if how is How.OPEN:
                await self.session.execute("BEGIN")
            await self._send()
            if how is How.OPEN:
                self.open = True
                self.actor.changed.set()
                await self._end
                await self.session.execute("COMMIT")
        except psycopg.Error as error:
            if not self.killed:
                trouble(error)
            self.error = lost("the session was killed")
        self.reply(self.error)
        self.over = True

    def end(self) -> None:
        self.open = False
        self._end.set_result(None)

    def reply(self, error: Exception | None) -> None:
        """Let the client know, unless it knows already or is not there any more."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


class Actor:
    """One participant: a script, a session, and at most one statement under way."""

    def __init__(self, name: str, conductor: "Conductor") -> None:
        self.name, self.conductor, self.changed = name, conductor, conductor.changed
        self.cue: asyncio.Future[How] | None = None
        self.next = self.before = b""
        self.repeats = 0  # how often it has said the same, while nobody else did anything new
        self.dead = False
        self.flight: Flight | None = None
        self.task: asyncio.Task[None] | None = None

    def start(self, script: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.create_task(script)
        self.task.add_done_callback(lambda _: self.changed.set())

    @property
    def resting(self) -> bool:
        """Whether it can do nothing but wait for us, or for a statement that is under way."""
        over = self.task is not None and self.task.done()
        under_way = self.flight is not None and not self.flight.over and not self.flight.answer.done()
        return self.dead or over or under_way or self.cue is not None

    async def perform(self, session: Session, text: bytes, send: Callable[[], Awaitable[None]]) -> None:
        """Wait for the cue, then run one statement as that says."""
        self.cue = asyncio.get_running_loop().create_future()
        self.next = text
        self.changed.set()
        how = await self.cue
        if how is How.UNSENT:
            raise lost("the connection was lost")
        self.flight = self.conductor.let_go(Flight(self, session, name_of(text), send), how)
        await self.flight.answer

    def says(self, text: str) -> None:
        self.conductor.story.add(self.name, text)


def lost(text: str) -> psycopg.OperationalError:
    return psycopg.OperationalError(text)
