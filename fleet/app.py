"""What a user imports: `Fleet`, `@app.task`, and a reference to what was submitted."""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, overload
from uuid import UUID

from uuid_utils.compat import uuid7

from fleet import __version__
from fleet.client import Client, Seconds, TaskRef, as_duration
from fleet.config import Settings, database_url, listen_url
from fleet.context import Context
from fleet.errors import ConfigurationError, InvalidArguments
from fleet.events import Events
from fleet.faultpoint import faultpoint
from fleet.handler import NAME_MAX, Handler, is_name
from fleet.postgres.database import Database, Row, answered
from fleet.postgres.submit import Submission, accepted, copy, statement
from fleet.postgres.transaction import AsyncTransaction, Transaction
from fleet.task import MAX_ATTEMPTS_IDEMPOTENT, MAX_ATTEMPTS_OTHERWISE, MAX_LOSSES, PRIORITIES, PRIORITY_DEFAULT
from fleet.tracing import spans_of
from fleet.worker.process import Worker, no_lifespan

P = ParamSpec("P")
R = TypeVar("R")

_KEY_MAX = 255
_SECONDS_MAX = 100 * 365 * 86400
_WHOLE = range(1, 2**31)
_PAST = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be said about one submission, apart from the task's arguments. None: as the handler declares."""

    queue: str | None = None  #: another queue than the handler's own
    priority: int | None = None  #: 0 (most urgent) to 9
    delay: Seconds | None = None  #: start it no sooner, counted from now; goes before `run_at`
    run_at: datetime | None = None  #: start it no sooner, with a time zone
    expires_at: datetime | None = None  #: not started by then, it ends FAILED `expired`; with a time zone
    timeout: Seconds | None = None  #: the time limit of one attempt
    idempotent: Literal[False] | None = None  #: False: this one task is not repeatable, whatever its handler says
    max_attempts: int | None = None  #: how many starts may end badly before it is FAILED
    max_losses: int | None = None  #: how many of them by a vanished worker
    idempotency_key: str | None = None  #: the same key and request again is the same task; 1 to 255 characters
    tx: AsyncTransaction | Transaction | None = None  #: the caller's own: the task exists if and only if it commits

    def check(self) -> None:
        """Raise InvalidArguments naming the option that cannot hold."""
        key = self.idempotency_key
        rules = {
            f"queue has 1 to {NAME_MAX} printable characters": self.queue is None or is_name(self.queue),
            "priority is 0 (most urgent) to 9": self.priority is None or self.priority in PRIORITIES,
            "0 <= delay <= 100 years": self.delay is None or 0 <= _seconds(self.delay) <= _SECONDS_MAX,
            "run_at needs a time zone": self.run_at is None or self.run_at.tzinfo is not None,
            "expires_at needs a time zone": self.expires_at is None or self.expires_at.tzinfo is not None,
            "0 < timeout <= 100 years": self.timeout is None or 0 < _seconds(self.timeout) <= _SECONDS_MAX,
            "idempotent can only be taken back (False): the handler's author grants it": not self.idempotent,
            "1 <= max_attempts < 2**31": self.max_attempts is None or self.max_attempts in _WHOLE,
            "1 <= max_losses < 2**31": self.max_losses is None or self.max_losses in _WHOLE,
            f"idempotency_key has 1 to {_KEY_MAX} printable characters": key is None
            or (0 < len(key) <= _KEY_MAX and key.isprintable()),
        }
        for rule, holds in rules.items():
            if not holds:
                raise InvalidArguments(f"option refused: {rule}")


class Task(Generic[P, R]):
    """A registered function. Call it to run it here; submit it to have a worker run it."""

    def __init__(self, app: "Fleet", handler: Handler, options: Options = Options()) -> None:
        self.app = app
        self.handler = handler
        self._options = options
        self.__doc__ = handler.function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function itself, here and now: for tests of your own."""
        return self.handler.function(*args, **kwargs)

    def options(self, **options: Any) -> "Task[P, R]":
        """Return the same task with options for what is submitted through it: see Options."""
        try:
            chosen = replace(self._options, **options)
        except TypeError:
            known = ", ".join(Options.__dataclass_fields__)
            raise InvalidArguments(f"unknown option among {', '.join(options)}; there are: {known}") from None
        chosen.check()
        return Task(self.app, self.handler, chosen)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> TaskRef[R]:
        """Check the arguments, write the task, and return once it is committed (with `tx`: written).

        Raises InvalidArguments (nothing was written), IdempotencyConflict, DatabaseUnreachable, and OutcomeUnknown where
        the connection was lost before the answer: submit again with the same idempotency key.
        """
        with self.app.spanned(self.submission(args, kwargs)) as submission:
            query, values = statement(submission)
            faultpoint("submit.before", submission.name)
            if self._options.tx is not None:
                row = await self.app.client.query_in(self._options.tx, query, **values)
            else:
                row = (await self.app.client.query(query, **values))[0]
            faultpoint("submit.after", submission.name)
            return self._accepted(submission, row)

    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> TaskRef[R]:
        """Do the same from plain code; `tx` then takes a synchronous session or connection."""
        with self.app.spanned(self.submission(args, kwargs)) as submission:
            query, values = statement(submission)
            faultpoint("submit.before", submission.name)
            if self._options.tx is not None:
                row = self.app.client.query_in_sync(self._options.tx, query, **values)
            else:
                row = self.app.client.query_sync(query, **values)[0]
            faultpoint("submit.after", submission.name)
            return self._accepted(submission, row)

    def _accepted(self, submission: Submission, row: Row) -> TaskRef[R]:
        task_id, _ = accepted(submission, row)
        if self.app.spans is not None:
            self.app.spans.submitted([task_id])
        return TaskRef(task_id, self.app.client)

    def submission(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Submission:
        """Return what would be written for this call. Raises InvalidArguments."""
        arguments = self.handler.bind(tuple(args), kwargs)
        return self.submission_of(self.handler.encode(arguments, self.app.settings.args_bytes_max))

    def submission_of(self, args: str, scope: str = "") -> Submission:
        """Return what would be written for arguments that are JSON text already. Keys are unique within a scope."""
        handler, options = self.handler, self._options
        return Submission(
            id=uuid7(),
            queue=options.queue or handler.queue,
            name=handler.name,
            args=args,
            priority=handler.priority if options.priority is None else options.priority,
            idempotent=options.idempotent,
            max_attempts=options.max_attempts or handler.max_attempts,
            max_losses=options.max_losses or handler.max_losses,
            timeout=None if options.timeout is None else as_duration(options.timeout),
            delay=None if options.delay is None else as_duration(options.delay),
            run_at=_within_reach(options.run_at),
            expires_at=_within_reach(options.expires_at),
            key=options.idempotency_key,
            scope=scope,
        )


class Fleet:
    """The tasks of one application, and the database behind them (default: FLEET_DATABASE_URL). Starts nothing itself."""

    def __init__(
        self, database_url: str | None = None, *, settings: Settings | None = None, queue: str = "default"
    ) -> None:
        self.handlers: dict[str, Handler] = {}
        self.settings = settings or Settings.from_environment(os.environ)
        self.database_url = database_url
        self._queue = queue
        self._lifespan: Callable[[], AbstractAsyncContextManager[Any]] = no_lifespan
        self._database: Database | None = None
        self._client: Client | None = None
        self.spans = spans_of(self.settings)

    @property
    def database(self) -> Database:
        """Where the tasks are. Raises ConfigurationError where no database was named."""
        if self._database is None:
            url = database_url(os.environ, self.database_url)
            if url is None:
                raise ConfigurationError(
                    "no database was named: set FLEET_DATABASE_URL=postgresql://user@host/database, or give Fleet(…) one"
                )
            self._database = Database(url, self.settings, listen_url=listen_url(os.environ))
        return self._database

    def use(self, database: Database, settings: Settings) -> None:
        """Point the app to a database and settings: for programs that decide when they start, such as the command line."""
        self._database, self.settings, self._client = database, settings, None
        self.spans = spans_of(settings)

    @property
    def client(self) -> Client:
        """The connections that submitting uses."""
        if self._client is None:
            self._client = Client(self.database)
        return self._client

    def spanned(self, submission: Submission) -> AbstractContextManager[Submission]:
        """Return a block in which something is submitted."""
        return nullcontext(submission) if self.spans is None else self.spans.submitting(submission)

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        idempotent: bool = False,
        max_attempts: int | None = None,
        max_losses: int = MAX_LOSSES,
        priority: int = PRIORITY_DEFAULT,
        timeout: Seconds | None = None,
        retry_on: tuple[type[Exception], ...] = (),
        fail_on: tuple[type[Exception], ...] = (),
    ) -> "Declare": ...

    def task(self, function: Callable[..., Any] | None = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Register a function, async or plain, under its name, and return the task that submits it.

        `idempotent=True` declares that running it twice is harmless; then, and only then, it is run again by itself
        when its worker vanished or it raised. `timeout` in seconds bounds one attempt.
        """
        if function is not None:
            return self._register(function)

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            return self._register(function, **declared)

        return decorate

    def _register(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str | None = None,
        idempotent: bool = False,
        max_attempts: int | None = None,
        timeout: Seconds | None = None,
        **declared: Any,
    ) -> Task[..., Any]:
        handler = Handler(
            function=function,
            name=name or function.__name__,
            queue=queue or self._queue,
            idempotent=idempotent,
            max_attempts=max_attempts or (MAX_ATTEMPTS_IDEMPOTENT if idempotent else MAX_ATTEMPTS_OTHERWISE),
            timeout=None if timeout is None else as_duration(timeout),
            **declared,
        )
        if handler.name in self.handlers:
            raise ConfigurationError(f"there is a task {handler.name!r} already; give one of them another name=")
        self.handlers[handler.name] = handler
        return Task(self, handler)

    def lifespan(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Register an async generator that opens what handlers need, once for each process, and yields `ctx.state`."""
        self._lifespan = asynccontextmanager(function)
        return function

    def worker(self, *, queues: Sequence[str] = (), name: str | None = None, events: Events | None = None) -> Worker:
        """Return a worker for these tasks: `async with app.worker(): …` runs them inside another program."""
        return Worker(
            self.database,
            self.handlers,
            self.settings,
            queues=queues,
            name=name,
            lifespan=self._lifespan,
            version=__version__,
            events=events,
        )

    async def submit_many(
        self,
        task: Task[..., R],
        arguments: Iterable[Mapping[str, Any]],
        *,
        progress: Callable[[int], None] = lambda count: None,
    ) -> list[TaskRef[R]]:
        """Submit a task once for each set of arguments, at the speed of COPY: all of them or, on any error, none.

        `progress` is called now and then with the number sent so far.
        """
        like = task.submission_of("{}")
        if like.key is not None:
            raise InvalidArguments("submit_many takes no idempotency key: one key stands for one task")
        refs: list[TaskRef[R]] = []
        client, limit, encode = self.client, self.settings.args_bytes_max, task.handler.encode

        def rows() -> Iterable[tuple[UUID, str]]:
            for index, each in enumerate(arguments):
                try:
                    args = encode(each, limit)
                except InvalidArguments as error:
                    error.add_note(f"in item {index}; nothing was submitted")
                    raise
                id_ = uuid7()
                refs.append(TaskRef(id_, client))
                yield id_, args

        with self.spanned(like) as spanned:
            async with client.connection() as connection:
                with answered():
                    await copy(connection, spanned, rows(), progress)
            if self.spans is not None:
                self.spans.submitted([ref.id for ref in refs])
        return refs

    async def close(self) -> None:
        """Close the connections that submitting has opened."""
        if self._client is not None:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Declare:
    """What `@app.task(…)` returns: it takes the function. Never made; it tells type checkers the shapes."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        raise NotImplementedError


def _within_reach(moment: datetime | None) -> datetime | None:
    """Return a moment that every reader can hold: what is past anyway as 1970, what never comes as the last there is.

    The driver cannot read years before 1 or after 9999, into which a time zone may carry; a claim would stumble over it.
    """
    if moment is None:
        return None
    try:
        return max(moment.astimezone(UTC), _PAST)
    except OverflowError:
        return _PAST if moment.year < _PAST.year else _NEVER


def _seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value
