"""The tests that carry a mark of the catalogue, as pytest itself finds them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.catalogue.plugin import ALL, COLLECTION

ROOT = Path(__file__).parents[2]


class Defence(NamedTuple):
    """One test against one fault. `test` is its path from the root of the repository, and its name behind `::`.

    `cases` are those of its parameters that stand for this fault; of a plain test it is the only one.
    """

    group: str
    fault: str
    test: str
    oracle: str
    cases: list[str]

    @property
    def path(self) -> str:
        return self.test.partition("::")[0]


def defences(config: pytest.Config | None = None) -> list[Defence]:
    """Return what all marks say: as the running session of pytest has seen it, else by asking a pytest of our own."""
    marked = config.stash.get(ALL, None) if config else None
    return [Defence(**each) for each in (asked() if marked is None else marked)]


def asked() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "marked.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "tests.catalogue.plugin"]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {COLLECTION: str(found)}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or not found.exists():
            raise RuntimeError(f"pytest could not collect the tests:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        marks: list[dict[str, Any]] = json.loads(found.read_text(encoding="utf-8"))
        return marks
