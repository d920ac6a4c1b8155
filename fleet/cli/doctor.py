"""`fleet doctor`: what is wrong with the database, and what mends it."""

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from fleet.cli.failures import ExitCode
from fleet.cli.options import database_option, output_option
from fleet.cli.output import Columns, cell, print_json, print_rows, say
from fleet.cli.session import open_database

if TYPE_CHECKING:
    from fleet.doctor import Finding

_COLUMNS: Columns = {
    "CHECK": "check",
    "VERDICT": "verdict",
    "EVIDENCE": "evidence",
    "MEND": "mend",
}
_MARKS = {"ok": "✓", "warning": "!", "problem": "✗", "unknown": "?"}


@click.command()
@click.option("--accept", "accepted", metavar="CHECK", multiple=True, help="Do not count this check's finding.")
@output_option
@database_option
def doctor(*, accepted: Sequence[str], output: str, database_url: str | None) -> None:
    """Examine the database, change nothing, and say of each finding what mends it.

    The exit code is 0 where every finding is ok, else 1. What could not be examined is `unknown`, and never called ok.
    A finding that is known and meant to be so is shown, but does not count, with --accept and the name of its check.
    """
    from fleet.doctor import CHECKS, Verdict, examine

    names = [each.name for each in CHECKS]
    for unknown in set(accepted).difference(names):
        raise click.BadParameter(f"there is no check {unknown!r}; there are: {', '.join(names)}", param_hint="--accept")
    findings = examine(open_database(database_url))
    healthy = all(each.verdict is Verdict.OK or each.check in accepted for each in findings)
    rows = [asdict(each) for each in findings]
    if output == "json":
        print_json({"healthy": healthy, "findings": rows})
    elif sys.stdout.isatty():
        _print_findings(findings)
    else:
        print_rows(rows, _COLUMNS, output, empty="")
    counts = {verdict: sum(each.verdict is verdict for each in findings) for verdict in Verdict}
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    raise click.exceptions.Exit(ExitCode.OK if healthy else ExitCode.CHECK_FAILED)


def _print_findings(findings: Sequence["Finding"]) -> None:
    """Print each finding as a paragraph: evidence is never cut, and what mends it can be copied."""
    width = max(len(each.check) for each in findings)
    indent = " " * (width + len("✗ problem  "))
    for each in findings:
        heading = f"{_MARKS[each.verdict]} {each.verdict:<7}  {each.check:<{width}}"
        lines = textwrap.wrap(cell(each.evidence), max(40, get_terminal_size().columns - len(indent) - 2))
        click.echo(f"{heading}  {lines[0]}")
        for line in lines[1:]:
            click.echo(f"{indent}  {line}")
        if each.mend:
            click.echo(f"{indent}  mend: {cell(each.mend)}")
