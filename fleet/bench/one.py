"""One scenario, as its command asks for it."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from fleet.bench import machine
from fleet.bench.result import Result, as_json
from fleet.bench.stage import opened
from fleet.cli.output import say


def run_one(server_url: str | None, name: str, options: Mapping[str, Any], output: str) -> None:
    """Measure it and print what was found."""
    with opened(server_url, say) as stage:
        result: Result = import_module(f"fleet.bench.scenarios.{name}").measure(stage, **options)
        described = machine.describe(stage.server_url)
    click.echo(as_json(result.document(described)) if output == "json" else "\n".join(result.lines()))
