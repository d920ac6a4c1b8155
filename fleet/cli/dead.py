"""`fleet dead`: list, requeue and discard dead letters."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

import click

from fleet.cli.failures import ExitCode, Refused
from fleet.cli.options import database_option, limit_option, output_option, queue_name
from fleet.cli.output import Columns, print_json, print_rows, say
from fleet.cli.session import act, actor, ask, open_database
from fleet.errors import NotFound
from fleet.task import FailureCode

if TYPE_CHECKING:
    from fleet.postgres.database import AsyncConnection, Database
    from fleet.postgres.dead_letter import Judge

Seen = dict[UUID, int]  # task → the attempt that failed
Command = TypeVar("Command", bound=Callable[..., Any])

_BULK_MAX = 100_000
_COLUMNS: Columns = {
    "ID": "id",
    "NAME": "name",
    "QUEUE": "queue",
    "ATTEMPT": "attempt",
    "FINISHED": "finished_at",
    "CODE": "failure_code",
    "REASON": "failure_reason",
}


class Verb(NamedTuple):
    """One of the two ways to judge dead letters."""

    word: str
    done: str
    judge: "Judge"


def _filters(command: Command) -> Command:
    for option in (
        click.option("--code", type=click.Choice([code.value for code in FailureCode]), help="Only those failed so."),
        click.option("--name", help="Only tasks of this name."),
        click.option("--queue", type=queue_name, help="Only tasks of this queue."),
    ):
        command = option(command)
    return command


def _bulk(command: Command) -> Command:
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "every", is_flag=True, help="Every dead letter there is."),
        _filters,
        click.argument("ids", metavar="[ID]...", nargs=-1, type=click.UUID),
    ):
        command = option(command)
    return command


@click.group()
def dead() -> None:
    """Judge dead letters: tasks that failed for good and that nobody has dealt with."""


@dead.command("list")
@_filters
@limit_option
@output_option
@database_option
def list_(
    *, queue: str | None, name: str | None, code: str | None, limit: int, output: str, database_url: str | None
) -> None:
    """List dead letters, the oldest first."""
    from fleet.postgres import inspect

    question = inspect.dead_letters(queue_name=queue, name=name, code=code, limit=limit)
    rows = ask(open_database(database_url), question)
    print_rows(rows, _COLUMNS, output, empty="no dead letter matches")
    if len(rows) == limit:
        say(f"only the oldest {limit} are shown; see --limit")


@dead.command()
@_bulk
@output_option
@database_option
def requeue(**options: Any) -> None:
    """Have dead letters run again, with fresh budgets: those given by ID, or all that match.

    Only the failure that was seen is judged: a task that has run again meanwhile is left alone.
    """
    from fleet.postgres import dead_letter

    _judge(Verb("requeue", "requeued", dead_letter.requeue), **options)


@dead.command()
@_bulk
@output_option
@database_option
def discard(**options: Any) -> None:
    """Lay dead letters aside: they stay FAILED, are no dead letters any more, and are pruned in time."""
    from fleet.postgres import dead_letter

    _judge(Verb("discard", "discarded", dead_letter.discard), **options)


def _judge(
    verb: Verb,
    *,
    ids: Sequence[UUID],
    queue: str | None,
    name: str | None,
    code: str | None,
    every: bool,
    yes: bool,
    output: str,
    database_url: str | None,
) -> None:
    filters = {"queue_name": queue, "name": name, "code": code}
    ways = [bool(ids), any(filters.values()), every]
    if sum(ways) != 1:
        raise click.UsageError("name the dead letters in one way: by ID, by --queue, --name and --code, or by --all")
    database = open_database(database_url)
    if ids:
        seen = _seen_by_id(database, ids)
    else:
        seen = _seen_by_filter(database, filters)
        if seen and not yes:
            _ask_first(verb)
    moved = set(act(database, lambda connection: _with_progress(connection, verb, seen)))
    left = [task_id for task_id in seen if task_id not in moved]
    if output == "json":
        print_json({verb.done: [task_id for task_id in seen if task_id in moved], "changed_meanwhile": left})
    say(f"{len(moved)} {verb.done}")
    if left:
        words = f"{len(left)} changed meanwhile and left alone"
        if ids:
            raise Refused(f"{words}: {', '.join(map(str, left))}", ExitCode.CONFLICT)
        say(words)


def _seen_by_id(database: "Database", ids: Sequence[UUID]) -> Seen:
    from fleet.postgres import inspect

    seen: Seen = {row["id"]: row["attempt"] for row in ask(database, inspect.dead_attempts(ids=tuple(ids), limit=None))}
    for task_id in ids:
        if task_id not in seen:
            found = ask(database, inspect.one_task(task_id))
            if not found:
                raise NotFound(f"there is no task {task_id}; nothing was changed")
            state = "a dead letter that was judged" if found[0]["resolved_at"] else found[0]["state"]
            raise Refused(f"task {task_id} is {state}, no dead letter; nothing was changed", ExitCode.CONFLICT)
    return seen


def _seen_by_filter(database: "Database", filters: Mapping[str, Any]) -> Seen:
    from fleet.postgres import inspect

    rows = ask(database, inspect.dead_attempts(**filters, limit=_BULK_MAX + 1))
    more = len(rows) > _BULK_MAX
    number = f"the oldest {_BULK_MAX:,} of more; run it again for the rest" if more else str(len(rows))
    say(f"dead letters that match: {number}")
    return {row["id"]: row["attempt"] for row in rows[:_BULK_MAX]}


def _ask_first(verb: Verb) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"add --yes to {verb.word} them without being asked")
    if not click.confirm(f"{verb.word} them?", err=True):
        raise Refused("nothing was changed", ExitCode.CHECK_FAILED)


async def _with_progress(connection: "AsyncConnection", verb: Verb, seen: Seen) -> list[UUID]:
    from fleet.postgres.dead_letter import BATCH, in_batches

    with click.progressbar(length=len(seen), label=verb.word, file=sys.stderr, hidden=len(seen) <= BATCH) as bar:
        return await in_batches(connection, verb.judge, seen, actor(), bar.update)
