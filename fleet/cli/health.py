"""`fleet health`: a probe for places where there is no HTTP."""

from typing import TYPE_CHECKING, Any

import click

from fleet.cli.failures import ExitCode, refused
from fleet.cli.options import database_option, output_option
from fleet.cli.output import Columns, print_json, print_rows
from fleet.cli.session import ask, open_database
from fleet.errors import SchemaMismatch

if TYPE_CHECKING:
    from fleet.postgres.database import Database

Check = dict[str, Any]

_COLUMNS: Columns = {
    "CHECK": "name",
    "OK": "ok",
    "DETAIL": "detail",
}


@click.command()
@click.option("--worker", is_flag=True, help="Also demand that a worker with a good lease is there.")
@output_option
@database_option
def health(*, worker: bool, output: str, database_url: str | None) -> None:
    """Tell whether the database answers and its schema fits: exit code 0 if so, else 1."""
    checks = _checks(open_database(database_url), worker=worker)
    healthy = all(check["ok"] for check in checks)
    if output == "json":
        print_json({"healthy": healthy, "checks": checks})
    else:
        print_rows(checks, _COLUMNS, output, empty="")
    raise click.exceptions.Exit(ExitCode.OK if healthy else ExitCode.CHECK_FAILED)


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
