"""What was submitted: asserted with messages that say what there was instead."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row
from pydantic_core import to_jsonable_python
from sqlalchemy import Connection, Select
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg as psycopg_dialect
from sqlalchemy.orm import Session

from fleet.app import Fleet, Task
from fleet.errors import InvalidArguments
from fleet.postgres import scratch
from fleet.task import State
from fleet.testing.inlining import InlineClient

Place = Fleet | Connection | Session | psycopg.Connection[Any]
_SHOWN = 10
_DIALECT = psycopg_dialect()  # type: ignore[no-untyped-call]


class Submitted(NamedTuple):
    """A task that was submitted."""

    id: UUID
    name: str
    arguments: dict[str, Any]  #: as JSON gives them back
    queue: str
    state: State

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={json.dumps(value)}" for key, value in self.arguments.items())
        return f"{self.name}({arguments}) in queue {self.queue}, {self.state}, {self.id}"


def submitted(place: Place, task: Task[..., Any] | str | None = None) -> list[Submitted]:
    """Return what was submitted, of one task or of all, the oldest first: at most the last thousand.

    `place` is an app (its database, or what it ran in inline mode), or a session or connection of SQLAlchemy or psycopg:
    that sees what its own transaction has not committed yet. With an async session, `await session.run_sync(submitted)`.
    """
    name = task.handler.name if isinstance(task, Task) else task
    if isinstance(place, Fleet) and isinstance(place.client, InlineClient):
        return [
            Submitted(each.id, each.name, json.loads(each.args), each.queue, each.state)
            for each in place.client.tasks.values()
            if name in (None, each.name)
        ]
    rows = reversed(_ask(place, scratch.submitted(name)))
    return [Submitted(UUID(str(id_)), called, args, queue, State(state)) for id_, called, args, queue, state in rows]


def assert_submitted(place: Place, task: Task[..., Any], /, **arguments: Any) -> Submitted:
    """Assert that a task was submitted with these arguments, whatever its others are; return the last such.

    `place` is as in `submitted`. Each argument is compared by its JSON. A failure's message lists what there was.
    """
    expected = _plain(task, arguments)
    there = submitted(place, task)
    found = [each for each in there if _only(each.arguments, expected) == expected]
    if found:
        return found[-1]
    raise AssertionError(_message(task.handler.name, expected, there, place))


def _only(arguments: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in names}


def _plain(task: Task[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as a submission would store them; where they are not all of them, each as JSON by itself."""
    handler = task.handler
    unknown = arguments.keys() - set(handler.parameters)
    if unknown:
        raise TypeError(f"{handler.name} has no argument {', '.join(sorted(unknown))}; it has {handler.parameters}")
    try:
        plain = json.loads(handler.encode(arguments, task.app.settings.args_bytes_max))
    except InvalidArguments:
        plain = {name: to_jsonable_python(value) for name, value in arguments.items()}
    return dict(plain)


def _message(name: str, expected: Mapping[str, Any], there: Sequence[Submitted], place: Place) -> str:
    wanted = ", ".join(f"{key}={json.dumps(value)}" for key, value in expected.items())
    said = f"no task {name}({wanted}) was submitted"
    if there:
        return "\n".join([f"{said}; of {name} there were, the last of {len(there)}:", *map(str, there[-_SHOWN:])])
    others = Counter(each.name for each in submitted(place))
    if not others:
        return f"{said}, and no other task either"
    return f"{said}, and no other {name}; there were: " + ", ".join(f"{n} of {each}" for each, n in others.items())


def _ask(place: Place, question: Select[Any]) -> list[Sequence[Any]]:
    match place:
        case Fleet():
            with place.database.engine("testing").connect() as connection:
                return list(connection.execute(question).all())
        case Session() | Connection():
            return list(place.execute(question).all())
        case psycopg.Connection():
            compiled = question.compile(dialect=_DIALECT)
            with place.cursor(row_factory=tuple_row) as cursor:
                return list(cursor.execute(str(compiled).encode(), compiled.params).fetchall())
    raise TypeError(
        f"an app, or a plain session or connection, is needed, not {type(place).__name__}; with an async session of "
        "SQLAlchemy, use `await session.run_sync(assert_submitted, task, …)`"
    )
