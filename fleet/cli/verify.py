"""`fleet verify`: judge a run that was written down, or audit a database at work."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.failures import ExitCode, Refused
from fleet.cli.options import database_option, output_option
from fleet.cli.output import Columns, print_json, print_rows, say
from fleet.cli.session import open_database

if TYPE_CHECKING:
    from fleet.verify import Report

_VERDICTS: Columns = {"CODE": "code", "VERDICT": "answer", "PROMISE": "title", "DETAIL": "detail"}
_CHECKS: Columns = {"CHECK": "check", "CODE": "code", "VERDICT": "answer", "EVIDENCE": "evidence", "ADVICE": "advice"}


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@click.option("--database", "of_database", is_flag=True, help="Audit the database itself; read-only.")
@click.option("--tasks", type=click.IntRange(1), default=100_000, show_default=True, help="Audit the youngest so many.")
@output_option
@database_option
def verify(*, folder: Path | None, of_database: bool, tasks: int, output: str, database_url: str | None) -> None:
    """Judge the run that is written down in DIR, promise by promise; or, with --database, what the tables say.

    Each is `pass`, `fail`, or `unknown` where the run did not put it to the test. The story of a task that a promise was
    broken for goes to stderr. The exit code is 1 where something failed, else 0.
    """
    if (folder is None) != of_database:
        raise Refused("give either the folder of a run, or --database", ExitCode.USAGE)
    ok = _audit(database_url, tasks, output) if folder is None else _judge(folder, output)
    raise click.exceptions.Exit(ExitCode.OK if ok else ExitCode.CHECK_FAILED)


def _judge(folder: Path, output: str) -> bool:
    from fleet.verify import verify as judged

    try:
        report = judged(folder)
    except FileNotFoundError as error:
        raise Refused(str(error), ExitCode.NOT_FOUND) from None
    except ValueError as error:
        raise Refused(str(error), ExitCode.USAGE) from None
    rows = [asdict(each) for each in report.verdicts]
    if output == "json":
        findings = [{**row, "findings": [each._asdict() for each in row["findings"]]} for row in rows]
        print_json({"ok": report.ok, "verdicts": findings})
    else:
        print_rows(rows, _VERDICTS, output, empty="")
        _tell_stories(report)
    say(_sum([each.answer for each in report.verdicts]))
    return report.ok


def _tell_stories(report: "Report") -> None:
    """Tell each story once, however many promises it breaks."""
    stories: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        if verdict.story:
            stories.setdefault(verdict.story, []).append(verdict.code)
    for story, codes in stories.items():
        say(f"\n{', '.join(codes)}: {story}")


def _audit(database_url: str | None, tasks: int, output: str) -> bool:
    from fleet.postgres import migrate
    from fleet.verify.audit import audit

    database = open_database(database_url)
    migrate.check(database)
    checks = audit(database, tasks)
    ok = not any(each.answer == "fail" for each in checks)
    rows: list[dict[str, Any]] = [asdict(each) for each in checks]
    if output == "json":
        print_json({"ok": ok, "checks": rows})
    else:
        print_rows(rows, _CHECKS, output, empty="")
        for each in checks:
            if each.answer == "fail":
                say(f"{each.check}: {each.evidence}\n  {each.advice}")
    say(_sum([each.answer for each in checks]))
    return ok


def _sum(answers: list[str]) -> str:
    return ", ".join(f"{answers.count(each)} {each}" for each in ("pass", "fail", "unknown") if each in answers)
