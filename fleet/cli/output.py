"""What commands print: data on stdout as a table or JSON, words on stderr. Nothing reaches a terminal unescaped."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from fleet.payload import clean_text

Row = Mapping[str, Any]
Columns = Mapping[str, str | Callable[[Row], object]]  # heading → key, or what makes the cell of the row

_CELL_BYTES = 1000
_TEXT_BYTES = 4 * 1024 * 1024
_NOTHING = "-"
_GAP = 2  # between two columns of a table
_LAST_MIN = 20  # so wide the last column may always be, and the terminal breaks the lines


def say(words: str) -> None:
    """Tell a person something, on stderr."""
    click.echo(clean_text(words, _TEXT_BYTES), err=True)


def print_json(document: object) -> None:
    """Print one JSON document, in ASCII: whatever a name or an error holds, no terminal acts upon it."""
    from fleet.postgres.inspect import plain

    click.echo(json.dumps(document, default=plain, indent=2))


def print_rows(rows: Sequence[Row], columns: Columns, output: str, *, empty: str) -> None:
    """Print rows: whole as JSON; or these columns as a table on a terminal, as tab-separated lines elsewhere."""
    if output == "json":
        print_json([dict(row) for row in rows])
    elif not rows:
        say(empty)
    elif sys.stdout.isatty():
        _print_table(rows, columns)
    else:
        click.echo("\t".join(columns))
        for row in rows:
            click.echo("\t".join(_cells(row, columns)))


def print_fields(row: Row) -> None:
    """Print everything about one thing, a line or a paragraph for each field."""
    width = max(map(len, row))
    for name, value in row.items():
        text = clean_text(value, _TEXT_BYTES) if isinstance(value, str) else cell(value)
        first, *more = text.splitlines() or [""]
        click.echo(f"{name:<{width}}  {first}")
        for line in more:
            click.echo(f"{'':<{width}}  {line}")


def cell(value: object) -> str:
    """Return a value as one line of text."""
    match value:
        case None | []:
            return _NOTHING
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        case timedelta():
            return f"{value.total_seconds():g} s"
        case list():
            return ", ".join(cell(member) for member in value)
    first, *more = str(value).splitlines() or [""]
    text = " ".join(clean_text(first, _CELL_BYTES).split())
    return f"{text} ..." if more else text or _NOTHING


def _cells(row: Row, columns: Columns) -> list[str]:
    return [cell(row[value] if isinstance(value, str) else value(row)) for value in columns.values()]


def _print_table(rows: Sequence[Row], columns: Columns) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [_cells(row, columns) for row in rows]
    *widths, last = (max(map(cell_len, column)) for column in zip(columns, *lines, strict=True))
    others = sum(widths) + _GAP * len(widths)
    # Only the last column, the free text, is cut; an id that lost its end would be of no use.
    last = min(last, max(_LAST_MIN, Console().width - others))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, _GAP - 1, 0, 0))
    for heading, width in zip(columns, [*widths, last], strict=True):
        table.add_column(heading, width=width, no_wrap=True, overflow="ellipsis")
    for line in lines:
        table.add_row(*map(Text, line))
    Console(width=others + last, height=len(lines)).print(table)  # both, or a dumb terminal has 80 columns
