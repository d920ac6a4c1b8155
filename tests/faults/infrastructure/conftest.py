"""Servers of these tests' own, and what must be there for them."""

from collections.abc import Iterator

import pytest

from tests.conformance.programs import Missing
from tests.conformance.room import Room, room
from tests.processes.conftest import crew, folder, sink, stage, watcher

__all__ = ["crew", "folder", "sink", "stage", "watcher"]


@pytest.fixture(scope="module")
def lent() -> Iterator[Room]:
    """A room for servers, cleared at the end of the file's tests, however they end."""
    with room() as lent:
        yield lent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """What cannot be had here is said in the summary, with its reason."""
    try:
        yield
    except Missing as missing:
        pytest.skip(str(missing))
