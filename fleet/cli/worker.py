"""`fleet worker`: run workers, list them, drain one."""

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from fleet.cli.api import listen
from fleet.cli.application import VARIABLE, load_app
from fleet.cli.failures import ExitCode, Refused
from fleet.cli.options import (
    PORT_MAX,
    address,
    database_option,
    duration,
    limit_option,
    log_options,
    output_option,
    queue_name,
)
from fleet.cli.output import Columns, Row, print_json, print_rows, say
from fleet.cli.session import act, ask, open_app, open_database
from fleet.errors import NotFound

if TYPE_CHECKING:
    from sqlalchemy import Select

    from fleet.app import Fleet
    from fleet.events import Events
    from fleet.postgres.database import AsyncConnection
    from fleet.worker.process import Worker
    from fleet.worker.supervisor import Command

_PROCESSES_MAX = 1000
_NAMESAKES_MAX = 1000


def _lease_words(row: Row) -> str:
    if row["state"] not in ("LIVE", "DRAINING"):
        return "over"
    seconds = row["expires_in_seconds"]
    return f"{seconds:.0f} s left" if seconds > 0 else f"expired {-seconds:.0f} s ago"


_COLUMNS: Columns = {
    "ID": "id",
    "WORKER": "worker",
    "HOST": "host",
    "VERSION": "version",
    "STATE": "state",
    "RUNNING": lambda row: f"{row['running']}/{row['slots']}",
    "QUEUES": "queues",
    "LEASE": _lease_words,
}


@click.group()
def worker() -> None:
    """Run, list and drain workers."""


@worker.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--processes", type=click.IntRange(1, _PROCESSES_MAX), default=1, show_default=True, help="So many.")
@click.option("--queue", "queues", type=queue_name, multiple=True, help="Serve this queue; default: all of the app's.")
@click.option("--slots", type=int, help="Handlers at once in each process.")
@click.option("--ttl", type=duration, help="How long a lease lasts that is not renewed, such as 30s.")
@click.option("--drain-timeout", type=duration, help="How long a drain waits for running handlers.")
@click.option(
    "--metrics",
    type=address,
    metavar="HOST:PORT",
    envvar="FLEET_METRICS",
    help="Serve metrics and probes there; of several processes the second on the next port, and so on.",
)
@click.option("--metrics-fd", type=click.IntRange(3), hidden=True, help="A socket that listens already, in its place.")
@click.option("--name", help="What the worker is called; default: worker-PID, in a container its host's name.")
@log_options
@database_option
def run(
    *,
    app: str | None,
    processes: int,
    queues: Sequence[str],
    slots: int | None,
    ttl: timedelta | None,
    drain_timeout: timedelta | None,
    metrics: tuple[str, int] | None,
    metrics_fd: int | None,
    name: str | None,
    log: str | None,
    log_level: str,
    database_url: str | None,
) -> None:
    """Run the tasks of MODULE:APP (default: FLEET_APP) until a signal, which drains.

    Every setting can be given by the environment too: FLEET_TTL=30s, FLEET_SLOTS=64 and so on.
    """
    from fleet.events import Events
    from fleet.postgres import migrate
    from fleet.verify import history
    from fleet.worker import supervisor

    fleet = load_app(app)
    database = open_app(fleet, database_url, slots=slots, ttl=ttl, drain_timeout=drain_timeout)
    migrate.check(database)
    events = Events()
    _start_logging(events, log, log_level)
    role = "worker" if processes == 1 else "supervisor"
    history.record_where_asked(events, os.environ, f"{role} {os.getpid()}", handlers=fleet.handlers)
    with ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in _sockets(metrics, metrics_fd, processes)]
        if processes == 1:
            worker = fleet.worker(queues=queues, name=name, events=events)
            if sockets:
                stack.enter_context(_telling(fleet, worker, sockets[0]))
            code = _serve(worker)
        else:
            if database_url:
                # By the environment: the arguments of a process can be read by everybody on the machine.
                os.environ["FLEET_DATABASE_URL"] = database_url
            options = {"--slots": slots, "--ttl": ttl, "--drain-timeout": drain_timeout, "--name": name, "--log": log}
            command = _child(app, queues, options | {"--log-level": log_level})
            code = supervisor.run(_commands(command, processes, sockets), database, fleet.settings, events)
    raise click.exceptions.Exit(code)


@worker.command("list")
@click.option("--all", "every", is_flag=True, help="Those whose lease is over, too.")
@limit_option
@output_option
@database_option
def list_(*, every: bool, limit: int, output: str, database_url: str | None) -> None:
    """List the workers and their leases, the youngest first."""
    from fleet.postgres import inspect

    rows = ask(open_database(database_url), inspect.workers(every=every, limit=limit))
    print_rows(rows, _COLUMNS, output, empty="no worker is on record" if every else "no worker is running")
    if len(rows) == limit:
        say(f"only the youngest {limit} are shown; see --limit")


@worker.command()
@click.argument("which", metavar="ID|NAME")
@click.option("--all", "every", is_flag=True, help="All of that name, where several have it.")
@output_option
@database_option
def drain(*, which: str, every: bool, output: str, database_url: str | None) -> None:
    """Let a worker claim no more, finish what it runs, and end.

    Returns at once: the worker learns of it by its next heartbeat. Its supervisor, if it has one, starts another.
    """
    from fleet.postgres import heartbeat

    database = open_database(database_url)
    rows = _current(ask(database, _leases(which)), which)
    if len(rows) > 1 and not every:
        ids = ", ".join(str(row["id"]) for row in rows)
        raise Refused(f"{len(rows)} workers are called {which!r}: give an id ({ids}), or --all", ExitCode.CONFLICT)

    async def drain_each(connection: "AsyncConnection") -> list[dict[str, Any]]:
        return [
            {"id": row["id"], "worker": row["worker"], "changed": await heartbeat.drain(connection, row["id"])}
            for row in rows
        ]

    done = act(database, drain_each)
    for each in done:
        say(f"{each['worker']} ({each['id']}) " + ("drains" if each["changed"] else "is draining already"))
    if output == "json":
        print_json(done)


def _sockets(metrics: tuple[str, int] | None, metrics_fd: int | None, processes: int) -> list[socket.socket]:
    """Return a socket that listens for each process; none where no metrics are wanted. Raises Refused.

    The parent of several keeps them for them: no port is ever lost to somebody else while a child starts again.
    """
    if metrics_fd is not None:
        lent = socket.socket(fileno=metrics_fd)
        lent.set_inheritable(False)  # by what handlers start
        return [lent]
    if metrics is None:
        return []
    host, port = metrics
    if port + processes - 1 > PORT_MAX:
        raise click.BadParameter(f"there are no {processes} ports from {port} on", param_hint="--metrics")
    return [listen(host, port + index if port else 0, "--metrics") for index in range(processes)]


@contextmanager
def _telling(fleet: "Fleet", worker: "Worker", listening: socket.socket) -> Iterator[None]:
    """Serve metrics and probes of a worker that is about to run."""
    from fleet.events import MetricsListening
    from fleet.metrics.fleet import FleetMetrics
    from fleet.metrics.server import serving
    from fleet.metrics.worker import WorkerMetrics
    from fleet.worker.runner import address_of

    process = WorkerMetrics(worker, fleet.handlers).registry
    with serving(listening, worker.standing, process, FleetMetrics(fleet.database).registry):
        worker.events.emit(MetricsListening(address_of(listening)))
        yield


def _serve(worker: "Worker") -> int:
    from psycopg import Error
    from sqlalchemy.exc import SQLAlchemyError

    from fleet.worker import runner

    try:
        return runner.run(worker)
    except (Error, SQLAlchemyError) as error:
        # Most likely of a database that the app's own lifespan opens: advice about the fleet's would mislead.
        raise RuntimeError("the worker was ended by an error of a database") from error


def _leases(which: str) -> "Select[Any]":
    from fleet.postgres import inspect

    try:
        return inspect.workers(every=True, lease_id=UUID(which))
    except ValueError:
        return inspect.workers(every=True, name=which, limit=_NAMESAKES_MAX)


def _current(rows: Sequence[Row], which: str) -> list[Row]:
    """Return those that are not over yet."""
    if not rows:
        raise NotFound(f"there is no worker {which!r}; see `fleet worker list`")
    current = [row for row in rows if row["state"] in ("LIVE", "DRAINING")]
    if not current:
        raise Refused(f"the lease of {which!r} is over already ({rows[0]['state']})", ExitCode.CONFLICT)
    return current


def _child(app: str | None, queues: Sequence[str], options: Mapping[str, object]) -> list[str]:
    """Return the command line of one worker process."""
    command = [sys.executable, "-m", "fleet", "worker", "run", app or os.environ[VARIABLE]]
    for queue in queues:
        command += [f"--queue={queue}"]
    for option, value in options.items():
        if value is not None:
            text = f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value)
            command += [f"{option}={text}"]
    return command


def _commands(command: Sequence[str], processes: int, sockets: Sequence[socket.socket]) -> list["Command"]:
    """Return the processes to keep alive, each with its own socket, if they have any."""
    from fleet.worker.supervisor import Command

    named = [f"worker {number}" for number in range(processes)]
    if not sockets:
        return [Command(name, command) for name in named]
    lent = [each.fileno() for each in sockets]
    return [
        Command(name, [*command, f"--metrics-fd={descriptor}"], (descriptor,))
        for name, descriptor in zip(named, lent, strict=True)
    ]


def _start_logging(events: "Events", log: str | None, log_level: str) -> None:
    from fleet import logs

    logs.configure(log, log_level)
    logs.subscribe(events)
