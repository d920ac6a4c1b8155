"""What the examples run with: a folder, an environment and a database of their own."""

import os
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.docs.terminal import Console

TTL = "2s"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No setting from outside, and a `fleet` command that is this very code."""
    commands = tmp_path / "bin"
    commands.mkdir()
    fleet = commands / "fleet"
    fleet.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fleet "$@"\n')
    fleet.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FLEET_", "PG", "PYTEST", "COV"))}
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), kept["PATH"]])
    kept |= {"PATH": path, "PYTHONPATH": str(DOCS.parent), "HOME": str(tmp_path)}
    if not entry_points(group="pytest11", name="fleet"):  # this very code is not installed: its plugin must be named
        kept["PYTEST_PLUGINS"] = "fleet.testing.plugin"
    return kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that a page works in."""
    folder = tmp_path / "shop"
    folder.mkdir()
    return folder


@pytest.fixture
def console(
    folder: Path, environment: dict[str, str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Console]:
    """Terminals in that folder, on that database; and the same for the code that runs in this process."""
    settings = {"FLEET_DATABASE_URL": database_url, "FLEET_TTL": TTL}
    for name in os.environ:
        if name.startswith(("FLEET_", "PG")):
            monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    modules = set(sys.modules)
    console = Console(folder, environment | settings, {})
    yield console
    console.close()
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder:
            del sys.modules[name]
