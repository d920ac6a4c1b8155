"""Where the demo is performed: the database, the files, what is printed where, and how it may be interrupted."""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Words

from fleet.demo import outbox, texts
from fleet.demo.errors import DemoError
from fleet.demo.plan import Plan
from fleet.demo.scenario import Scenario
from fleet.demo.steps import Step
from fleet.demo.story import conclude, explain
from fleet.embedded import EmbeddedError, temporary


class Narrator:
    """Prints lines on stdout as things happen, and the progress on stderr, each as far as there is a terminal."""

    def __init__(self, *, silent: bool, began: float) -> None:
        self._began = began
        self._silent = silent
        self._console = Console() if sys.stdout.isatty() else None
        self._draws = sys.stderr.isatty()
        self._drawn = ""

    def tell(self, step: Step) -> None:
        """Say what has happened, and when."""
        self.say(explain(step), f"{time.monotonic() - self._began:.1f} s")

    def say(self, lines: list[str], moment: str = "") -> None:
        """Print lines; the moment stands before the first."""
        self._draw("")
        if self._silent:
            return
        for line in lines:
            if self._console is None:
                click.echo(f"{moment:>7}  {line}".rstrip())
            else:
                self._console.print(_styled(moment, line))
            moment = ""
        sys.stdout.flush()

    def progress(self, what: str, done: int, of: int) -> None:
        """Show how far it is."""
        self._draw(f"{done} of {of} tasks {what}")

    def _draw(self, text: str) -> None:
        if self._draws and text != self._drawn:
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()
            self._drawn = text


def perform(output: str, folder: Path | None, database_url: str | None, workers: int) -> int:
    """Play the demo and return the exit code: 0, or 1 if a promise is broken. Raises DemoError."""
    began = time.monotonic()
    plan = Plan.of(texts.from_folder(folder) if folder else texts.built_in(), workers)
    narrator = Narrator(silent=output == "json", began=began)
    with (
        _signals(),
        _database(database_url, narrator) as url,
        tempfile.TemporaryDirectory(prefix="fleet-demo-") as name,
    ):
        path = outbox.location() if database_url or os.environ.get(outbox.VARIABLE) else Path(name, "outbox.jsonl")
        scenario = Scenario(
            plan,
            url,
            began=began,
            folder=Path(name),
            outbox_path=path.absolute(),
            tell=narrator.tell,
            progress=narrator.progress,
        )
        report = scenario.run()
    narrator.say(["", *conclude(report)])
    if output == "json":
        click.echo(json.dumps(report.as_json(), indent=2))
    return 1 if report.broken else 0


@contextmanager
def _database(given: str | None, narrator: Narrator) -> Iterator[str]:
    """Lend the database that was given, or a server of our own that is gone afterwards."""
    if given:
        yield given
        return
    narrator.say(["A PostgreSQL server starts, for this demo alone. It will be gone at the end."], "0.0 s")
    try:
        with temporary() as server:
            yield server.url
    except EmbeddedError as error:
        raise DemoError(f"{error}\nOr name an empty database with --database-url.") from None


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo in order, like Ctrl-C, unless they are ignored, as under nohup."""
    caught = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _styled(moment: str, line: str) -> Table:
    """Return a line with its moment beside it; what does not fit goes on below its beginning."""
    indented = len(line) - len(line.lstrip())
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=7, justify="right", style="dim")
    grid.add_column()
    words = Words(line.strip())
    words.highlight_words(["SIGKILL", "FAILED", "lease_expired", "BROKEN"], "bold red")
    words.highlight_words(["SUCCEEDED", "Nothing was lost"], "bold green")
    words.highlight_regex(r"`[^`]+`|\b(worker-\d+|analyze|publish)\b", "bold")
    grid.add_row(moment, Padding(words, (0, 0, 0, indented)))
    return grid
