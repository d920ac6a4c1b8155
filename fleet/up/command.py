"""`fleet up`."""

import os
from pathlib import Path

import click
from click.core import ParameterSource

from fleet.cli.application import VARIABLE, load_app

DEMO = "fleet.demo:app"
_EPILOG = """\b
Exit codes: 0 ended by a signal, 2 an option or the folder cannot be used,
3 no database can be had, 4 its data or schema is of another version,
6 the folder or the port is taken, 130 interrupted before it was up."""


@click.command(epilog=_EPILOG)
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="FLEET_DATA",
    help="Of the PostgreSQL that is run here. Default: FLEET_DATA, else the user's data folder; root's is /var/lib/fleet.",
)
@click.option(
    "--database-url",
    metavar="URL",
    help="Use this database and start none. Default: FLEET_DATABASE_URL, libpq's PG* variables.",
)
@click.option("--workers", type=click.IntRange(1, 100), default=3, show_default=True, help="So many processes.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Of the API; 0: any that is free."
)
@click.option("--sample", is_flag=True, help="Have the workers analyze some texts; only with the example app.")
@click.option("--log", type=click.Choice(["console", "json"]), help="Default: console, or what the app has set up.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Default: warning; with --log json: info.",
)
@click.pass_context
def up(
    context: click.Context,
    *,
    app: str | None,
    data: Path | None,
    database_url: str | None,
    workers: int,
    port: int,
    sample: bool,
    log: str | None,
    log_level: str | None,
) -> None:
    """Run a whole fleet on this machine until Ctrl-C: PostgreSQL, workers and the HTTP API.

    The tasks are those of MODULE:APP (default: FLEET_APP, else the example, fleet.demo:app). Where no database is named,
    a PostgreSQL of its own is started (needs pgfleet[embedded]); its data stays. What dies is started again.

    The API listens on 127.0.0.1 only. Settings come from the environment: FLEET_SLOTS=16, FLEET_TTL=10s and so on.

    SIGINT, SIGTERM and SIGHUP let the workers finish what they run and end everything: exit code 0. A second one waits for
    no task.
    """
    from fleet.demo.tasks import app as example  # noqa: PLC0415 - `fleet up --help` imports nothing heavy
    from fleet.up.house import default_data  # noqa: PLC0415 - likewise
    from fleet.up.plan import Plan  # noqa: PLC0415 - likewise
    from fleet.up.run import run  # noqa: PLC0415 - likewise

    path = app or os.environ.get(VARIABLE) or DEMO
    fleet = load_app(path)
    if sample and fleet is not example:
        raise click.UsageError(f"--sample submits tasks of the example app, {DEMO}: {path} does not have them")
    plan = Plan(
        path=path,
        app=fleet,
        data=(data or default_data()).absolute(),
        data_is_demanded=context.get_parameter_source("data") is ParameterSource.COMMANDLINE,
        database_url=database_url,
        workers=workers,
        port=port,
        sample=sample,
        log=log,
        log_level=log_level or ("info" if log == "json" else "warning"),
    )
    raise click.exceptions.Exit(run(plan))
