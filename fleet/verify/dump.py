"""Write the final tables, and the journal where one is kept, into a run's folder: `database.jsonl`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import psycopg
from psycopg.rows import tuple_row

from fleet.postgres import journal

NAME = "database.jsonl"
_FETCHED_AT_ONCE = 2000


async def dump(connection: psycopg.AsyncConnection[Any], folder: Path | str) -> Path:
    """Write all rows of the fleet's tables, in one snapshot; a dump that was there before is replaced."""
    with _replaced(Path(folder)) as (path, file):
        async with connection.transaction():
            await connection.execute(journal.BEGIN_DUMP)
            cursor = await connection.execute(journal.IS_INSTALLED.native)
            row = await cursor.fetchone()
            for query in journal.queries(installed=bool(row and row[0])):
                async with connection.cursor("fleet_dump", row_factory=tuple_row) as rows:
                    rows.itersize = _FETCHED_AT_ONCE
                    await rows.execute(query)
                    async for (line,) in rows:
                        file.write(line + "\n")
    return path


def dump_sync(connection: psycopg.Connection[Any], folder: Path | str) -> Path:
    """The same on a synchronous connection."""
    with _replaced(Path(folder)) as (path, file), connection.transaction():
        connection.execute(journal.BEGIN_DUMP)
        row = connection.execute(journal.IS_INSTALLED.native).fetchone()
        for query in journal.queries(installed=bool(row and row[0])):
            with connection.cursor("fleet_dump", row_factory=tuple_row) as rows:
                rows.itersize = _FETCHED_AT_ONCE
                rows.execute(query)
                file.writelines(line + "\n" for (line,) in rows)
    return path


@contextmanager
def _replaced(folder: Path) -> Iterator[tuple[Path, TextIO]]:
    """Lend a file that takes the dump's place once it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    draft = path.with_suffix(".draft")
    with draft.open("w", encoding="utf-8") as file:
        yield path, file
    draft.replace(path)
