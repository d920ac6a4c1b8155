"""The command line: `fleet NOUN VERB`, one file for each noun. Nothing heavy is imported until a command runs."""

import io
import os
import signal
import sys
from typing import Any, NoReturn

import click

from fleet import __version__
from fleet.cli.failures import ExitCode, Refused, refused, tell_defect
from fleet.cli.lazy import LazyGroup, Target

__all__ = ["main"]

_COMMANDS = {
    "up": Target("fleet.up.command:up", "Run a whole fleet on this machine: database, workers, API."),
    "demo": Target("fleet.demo.command:demo", "Watch a fleet survive the death of its workers."),
    "worker": Target("fleet.cli.worker:worker", "Run, list and drain workers."),
    "api": Target("fleet.cli.api:api", "Serve the HTTP API."),
    "task": Target("fleet.cli.task:task", "Submit, list, show and cancel tasks."),
    "dead": Target("fleet.cli.dead:dead", "Judge dead letters: tasks that failed for good."),
    "queue": Target("fleet.cli.queue:queue", "List, pause and resume queues."),
    "token": Target("fleet.cli.token:token", "Make, list and revoke tokens for the HTTP API."),
    "db": Target("fleet.cli.db:db", "Create and check the schema in the database."),
    "doctor": Target("fleet.cli.doctor:doctor", "Examine the database, and say what mends each finding."),
    "verify": Target("fleet.cli.verify:verify", "Judge a run that was written down, or audit the database."),
    "bench": Target("fleet.bench.command:bench", "Measure speed, against a bare loop and against others."),
    "health": Target("fleet.cli.health:health", "Tell whether the fleet can work: a probe."),
    "completion": Target("fleet.cli.completion:completion", "Print the script that completes commands in a shell."),
}
_SIGNALLED = 128
_EPILOG = """\b
The database: --database-url, else FLEET_DATABASE_URL or the file that
FLEET_DATABASE_URL_FILE names, else what the app itself names, else
libpq's PG* variables.

\b
Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 database unreachable,
4 schema does not fit, 5 not found, 6 conflict, 130 interrupted."""


class _Root(LazyGroup):
    """Turns what users can expect to happen into one sentence and an exit code, whatever command it comes from."""

    def invoke(self, ctx: click.Context) -> Any:
        if os.getpid() == 1:  # of a container: the system lets nothing end it that it has not asked for itself
            signal.signal(signal.SIGTERM, _end)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            refusal = Refused("interrupted", ExitCode.INTERRUPTED)
        except Exception as error:
            expected = refused(error)
            if expected is None:
                sys.excepthook = tell_defect
                raise
            refusal = expected
        click.echo(f"Error: {refusal.message}", err=True)
        raise click.exceptions.Exit(refusal.code)


def _end(number: int, frame: object) -> NoReturn:
    """End as any other process would at this signal; who drains has another handler by then."""
    sys.exit(_SIGNALLED + number)


@click.group(cls=_Root, targets=_COMMANDS, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fleet")
def main() -> None:
    """Worker processes behind one PostgreSQL, each holding a lease."""
