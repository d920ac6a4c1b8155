"""`fleet health`: a probe for places where there is no other, such as an image without a shell."""

import json
import os
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Literal

import click

from fleet.cli.failures import ExitCode, refused
from fleet.cli.options import database_option, output_option
from fleet.cli.output import Columns, print_json, print_rows
from fleet.cli.session import ask, open_database
from fleet.errors import SchemaMismatch

if TYPE_CHECKING:
    from fleet.postgres.database import Database

Check = dict[str, Any]
Probe = Literal["live", "ready"]

_PATHS: dict[Probe, str] = {"live": "/livez", "ready": "/readyz"}
_PATIENCE_SECONDS = 5.0
_METRICS = "FLEET_METRICS"  # where a worker serves its metrics, and these probes

_COLUMNS: Columns = {
    "CHECK": "name",
    "OK": "ok",
    "DETAIL": "detail",
}


@click.command()
@click.option("--worker", is_flag=True, help="Also demand that a worker with a good lease is there.")
@click.option("--live", "probe", flag_value="live", help="Ask a process over HTTP whether it is alive instead.")
@click.option(
    "--ready", "probe", flag_value="ready", help="Ask a process over HTTP whether it can do its work instead."
)
@click.option("--at", metavar="HOST:PORT", help="Of that process. Default: the port of FLEET_METRICS on this host.")
@output_option
@database_option
def health(*, worker: bool, probe: Probe | None, at: str | None, output: str, database_url: str | None) -> None:
    """Tell whether the database answers and its schema fits: exit code 0 if so, else 1.

    With --live or --ready the database is not asked, but one process: the API, or a worker that serves its metrics.
    """
    if probe is not None:
        checks = [_asked(probe, at or _own_address())]
    else:
        checks = _checks(open_database(database_url), worker=worker)
    healthy = all(check["ok"] for check in checks)
    if output == "json":
        print_json({"healthy": healthy, "checks": checks})
    else:
        print_rows(checks, _COLUMNS, output, empty="")
    raise click.exceptions.Exit(ExitCode.OK if healthy else ExitCode.CHECK_FAILED)


def _own_address() -> str:
    """Return where a worker in this container, or on this host, can be asked."""
    _, colon, port = os.environ.get(_METRICS, "").rpartition(":")
    if not colon:
        raise click.UsageError(f"no process was named: give --at HOST:PORT, or set {_METRICS} as for the worker")
    return f"127.0.0.1:{port}"


def _asked(probe: Probe, at: str) -> Check:
    """Ask one process. Whatever it answers but 200, and any silence, is no health."""
    try:
        connection = HTTPConnection(at, timeout=_PATIENCE_SECONDS)
        try:
            connection.request("GET", _PATHS[probe])
            answer = connection.getresponse()
            words = answer.read().decode(errors="replace")
        finally:
            connection.close()
    except (OSError, HTTPException) as error:
        return _check(probe, f"{at} does not answer: {error}", ok=False)
    healthy = answer.status == HTTPStatus.OK
    return _check(probe, f"{at} answers {answer.status}{'' if healthy else _why(words)}", ok=healthy)


def _why(words: str) -> str:
    """Return what the answer says is wrong: each error of a problem document, or its first line."""
    try:
        return ": " + "; ".join(each["detail"] for each in json.loads(words)["errors"])
    except (ValueError, LookupError, TypeError):
        return f": {words.partition(chr(10))[0]}" if words else ""


def _checks(database: "Database", *, worker: bool) -> list[Check]:
    """Check one thing after another, up to the first that fails."""
    from fleet.postgres import inspect, migrate

    try:
        revision = migrate.check(database)
        workers = ask(database, inspect.live_workers())[0]["workers"] if worker else 0
    except SchemaMismatch as error:
        return [_check("database", "answers"), _check("schema", str(error), ok=False)]
    except Exception as error:
        refusal = refused(error)
        if refusal is None:
            raise
        return [_check("database", refusal.message, ok=False)]
    checks = [_check("database", "answers"), _check("schema", f"revision {revision}")]
    if worker:
        checks.append(_check("worker", f"{workers} with a good lease", ok=workers > 0))
    return checks


def _check(name: str, detail: str, *, ok: bool = True) -> Check:
    return {"name": name, "ok": ok, "detail": detail}
