"""Worker processes, the stage that their handlers play on, and connections that look on without time-outs."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fleet.postgres.database import AsyncConnection
from tests.processes.crew import Crew, Sink
from tests.processes.stage import Stage, open_stage


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: the path of a socket has a limit."""
    with tempfile.TemporaryDirectory(prefix="crew-") as name:
        yield Path(name)


@pytest.fixture
async def stage(folder: Path) -> AsyncIterator[Stage]:
    async with open_stage(folder / "stage") as stage:
        yield stage


@pytest.fixture
async def watcher(database_url: str) -> AsyncIterator[AsyncConnection]:
    """The test's own eyes."""
    async with await AsyncConnection.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def locker(database_url: str) -> AsyncIterator[AsyncConnection]:
    """The test's own hands: begins a transaction with its first statement, and holds locks until commit()."""
    async with await AsyncConnection.connect(database_url) as connection:
        yield connection
        await connection.rollback()


@pytest.fixture
async def crew(database_url: str, folder: Path, watcher: AsyncConnection, stage: Stage) -> AsyncIterator[Crew]:
    crew = Crew(database_url, folder, watcher, stage.path)
    try:
        yield crew
    finally:
        crew.clean_up()


@pytest.fixture
def sink(crew: Crew) -> Sink:
    return crew.sink
