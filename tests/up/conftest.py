"""Folders that root's server may enter too, and fleets in them."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.up.running import Up


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fleet-up-"))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = new_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Up]]:
    """Start `fleet up` in the test's folder; whatever happens, nothing of it is left."""
    started: list[Up] = []

    def start(*arguments: str, **options: Any) -> Up:
        started.append(Up(folder, *arguments, **options))
        return started[-1]

    yield start
    for up in reversed(started):  # they may share a folder
        up.clean_up()


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """A fleet that the tests of one file share: each leaves it as whole as it was."""
    folder = new_folder()
    up = Up(folder, "shop:app", "--workers=2")
    try:
        yield up.ready()
    finally:
        up.clean_up()
        shutil.rmtree(folder)
