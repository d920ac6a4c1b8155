"""`fleet task`: submit, list, show and cancel tasks."""

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from fleet.cli.application import load_app
from fleet.cli.failures import ExitCode, Refused
from fleet.cli.options import ago, database_option, duration, limit_option, moment, output_option, queue_name
from fleet.cli.output import Columns, print_fields, print_json, print_rows, say
from fleet.cli.session import act, actor, ask, open_app, open_database
from fleet.cli.waiting import await_end
from fleet.errors import InvalidArguments, NotFound
from fleet.task import PRIORITIES, FailureCode, State

if TYPE_CHECKING:
    from fleet.postgres.database import AsyncConnection

_STDIN_FACTOR = 4  # blank space and escapes make JSON from outside longer than what is stored
_COLUMNS: Columns = {
    "ID": "id",
    "NAME": "name",
    "QUEUE": "queue",
    "STATE": "state",
    "ATTEMPT": "attempt",
    "CREATED": "created_at",
    "CODE": "failure_code",
}
_ATTEMPT_COLUMNS: Columns = {
    "ATTEMPT": "attempt",
    "OUTCOME": lambda row: row["outcome"] + (" (late)" if row["late"] else ""),
    "AT": "at",
    "WORKER": "worker",
    "DETAIL": "detail",
}
_CANCEL_COLUMNS: Columns = {
    "ID": "id",
    "STATE": "state",
    "RESULT": lambda row: row["result"].replace("_", " "),
}


@click.group()
def task() -> None:
    """Submit, list, show and cancel tasks."""


@task.command()
@click.argument("name")
@click.argument("arguments", metavar="[JSON | -]", default="{}")
@click.option("--app", metavar="MODULE:APP", help="Whose task it is; default: FLEET_APP.")
@click.option("--priority", type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]), help="0 is the most urgent.")
@click.option("--delay", type=duration, help="Start it no sooner, such as 30s.")
@click.option("--run-at", type=moment, metavar="TIME", help="Start it no sooner, such as 2030-01-31T09:00:00Z.")
@click.option("--expires-at", type=moment, metavar="TIME", help="Do not start it any more after this.")
@click.option("--timeout", type=duration, help="How long an attempt may run; default: the task's own.")
@click.option("--max-attempts", type=click.IntRange(min=1), help="How many attempts it has; default: the task's own.")
@click.option("--queue", type=queue_name, help="Default: the task's own.")
@click.option("--idempotency-key", metavar="KEY", help="The same key again makes no second task.")
@click.option("--wait", is_flag=True, help="Wait for the task's end, and print its result.")
@click.option("--wait-timeout", type=duration, help="Wait no longer than this; the task goes on. Implies --wait.")
@output_option
@database_option
def submit(
    *,
    name: str,
    arguments: str,
    app: str | None,
    wait: bool,
    wait_timeout: timedelta | None,
    output: str,
    database_url: str | None,
    **options: Any,
) -> None:
    """Submit the task NAME with a JSON object of arguments, given here or, with -, on stdin. Prints its id.

    With --wait its result is printed instead, as JSON. The exit code is 1 where the task did not succeed, or not in time.
    """
    from fleet.app import Task
    from fleet.postgres import fit
    from fleet.postgres.database import run_sync
    from fleet.postgres.submit import accepted, statement

    if options["delay"] is not None and options["run_at"] is not None:
        raise click.UsageError("give --delay or --run-at, not both")
    fleet = load_app(app)
    database = open_app(fleet, database_url)
    handler = fleet.handlers.get(name)
    if handler is None:
        raise NotFound(f"the app has no task {name!r}; it has: {', '.join(sorted(fleet.handlers)) or 'none'}")
    values = _arguments(arguments, fleet.settings.args_bytes_max)
    submission = Task(fleet, handler).options(**options).submission((), values)
    query, parameters = statement(submission)
    with database.connect_sync("cli") as connection:
        fit.demand_sync(connection)
        row = run_sync(connection, query, **parameters)[0]
    task_id, created = accepted(submission, row)
    if not created:
        say("there was a task with this idempotency key already: no second one was made")
    if wait or wait_timeout is not None:
        await_end(database, task_id, wait_timeout, output, created=created)
    elif output == "json":
        print_json({"id": task_id, "created": created})
    else:
        click.echo(str(task_id))


@task.command("list")
@click.option("--state", type=click.Choice([state.value for state in State], case_sensitive=False))
@click.option("--queue", "queue_name", type=queue_name, help="Only tasks of this queue.")
@click.option("--name", help="Only tasks of this name.")
@click.option("--code", type=click.Choice([code.value for code in FailureCode]), help="Only those failed so.")
@click.option("--worker", metavar="ID|NAME", help="Only what this worker runs now.")
@click.option("--since", type=ago, metavar="DURATION", help="Only those submitted within this time, such as 1h.")
@click.option("--before", type=click.UUID, metavar="ID", help="Only older ones: the last id of the page before.")
@limit_option
@output_option
@database_option
def list_(*, state: str | None, limit: int, output: str, database_url: str | None, **filters: Any) -> None:
    """List tasks, the newest first."""
    from fleet.postgres import inspect

    question = inspect.tasks(state=State(state) if state else None, limit=limit, **filters)
    rows = ask(open_database(database_url), question)
    print_rows(rows, _COLUMNS, output, empty="no task matches")
    if len(rows) == limit:
        say(f"there may be more: --before {rows[-1]['id']}")


@task.command()
@click.argument("task_id", metavar="ID", type=click.UUID)
@output_option
@database_option
def show(*, task_id: UUID, output: str, database_url: str | None) -> None:
    """Show everything about one task: arguments, result, failure, attempts, and reports that came too late."""
    from fleet.postgres import inspect

    database = open_database(database_url)
    found = ask(database, inspect.one_task(task_id))
    if not found:
        raise NotFound(f"there is no task {task_id}; it was never committed, or it was pruned")
    history = ask(database, inspect.history(task_id))
    if output == "json":
        attempts = [{key: value for key, value in row.items() if key != "task_id"} for row in history]
        print_json(found[0] | {"attempts": attempts})
        return
    print_fields({name: _as_json(value) if name in ("args", "result") else value for name, value in found[0].items()})
    if history:
        click.echo()
        print_rows(history, _ATTEMPT_COLUMNS, output, empty="")


@task.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.UUID)
@output_option
@database_option
def cancel(*, ids: Sequence[UUID], output: str, database_url: str | None) -> None:
    """Cancel tasks: at once before they start; the worker of a running one is asked to stop it."""
    from fleet.postgres.cancel import cancel as cancel_tasks

    async def verb(connection: "AsyncConnection") -> dict[UUID, tuple[State, bool]]:
        return await cancel_tasks(connection, ids, actor())

    answers = act(open_database(database_url), verb)
    rows = []
    for task_id in dict.fromkeys(ids):
        state, changed = answers.get(task_id, (None, False))
        rows.append({"id": task_id, "state": state, "result": _result(state, changed=changed)})
    print_rows(rows, _CANCEL_COLUMNS, output, empty="")
    results = [row["result"] for row in rows]
    if "not_found" in results:
        raise NotFound(f"not found: {results.count('not_found')} of {len(rows)} tasks")
    if "too_late" in results:
        raise Refused(f"too late for {results.count('too_late')} of {len(rows)} tasks", ExitCode.CONFLICT)


def _result(state: State | None, *, changed: bool) -> str:
    match state, changed:
        case None, _:
            return "not_found"
        case State.CANCELLED, True:
            return "cancelled"
        case State.CANCELLED, False:
            return "cancelled_already"
        case _, True:
            return "worker_asked"
    return "too_late"


def _arguments(text: str, bytes_max: int) -> dict[str, Any]:
    """Read the arguments, here or from stdin. Raises InvalidArguments where they are no JSON object."""
    if text == "-":
        limit = _STDIN_FACTOR * bytes_max
        data = sys.stdin.buffer.read(limit + 1)
        if len(data) > limit:
            raise InvalidArguments(f"stdin has more than {limit:,} bytes; arguments take at most {bytes_max:,}")
        text = data.decode(errors="surrogateescape")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"the arguments are no JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidArguments('the arguments must be a JSON object, such as {"text": "hello"}')
    return values


def _as_json(value: object) -> str | None:
    return None if value is None else json.dumps(value, indent=2, ensure_ascii=False)
