"""`fleet demo`."""

from pathlib import Path

import click

from fleet.cli.options import output_option
from fleet.cli.session import open_database


@click.command()
@click.option(
    "--texts",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Work on the *.txt and *.md files of this folder; default: the help texts that every Python has.",
)
@click.option("--workers", type=click.IntRange(2, 16), default=3, show_default=True, help="So many processes.")
@output_option
@click.option("--database-url", metavar="URL", help="An empty database; default: a server of its own, gone afterwards.")
def demo(*, texts: Path | None, workers: int, output: str, database_url: str | None) -> None:
    """Kill a worker in the middle of its tasks and watch the others make up for it.

    Takes some ten seconds. Exit code 1 means that a promise was broken; then it says which.
    """
    from fleet.demo.stage import perform  # noqa: PLC0415 - `fleet demo --help` imports nothing heavy

    if database_url:
        open_database(database_url)  # refuses what cannot be read before anything is started
    raise click.exceptions.Exit(perform(output, texts, database_url, workers))
