"""What a command prints of one result."""

from pathlib import Path

import click

from fleet.bench import machine
from fleet.bench.result import Result, as_json
from fleet.bench.stage import Stage


def show(stage: Stage, result: Result, output: str, save: Path | None = None) -> None:
    """Print a result as lines or as JSON, and write the JSON into a file if one was named."""
    document = as_json(result.document() | {"machine": machine.describe(stage.server_url)})
    if save is not None:
        save.write_text(document + "\n", encoding="utf-8")
    click.echo(document if output == "json" else "\n".join(result.lines()))
