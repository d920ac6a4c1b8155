"""Write fleet/postgres/shape.json anew: FLEET_TEST_DATABASE_URL=... python -m tests.migrations.shape."""

import json
from pathlib import Path

from fleet.config import Settings
from fleet.postgres import migrate, shape
from fleet.postgres.database import Connection, Database
from fleet.postgres.scratch import new_database
from fleet.testing import databases

FILE = Path(shape.__file__).with_suffix(".json")


def made(server_url: str) -> shape.Shape:
    """What the migrations make of an empty database."""
    with new_database(server_url, "template1") as url:
        migrate.upgrade(Database(url, Settings()))
        with Connection.connect(url, autocommit=True) as connection:
            return shape.found(connection)


def written(parts: shape.Shape) -> str:
    """The same as the text of the file: a part on each line."""
    lines = ",\n".join(json.dumps([*key, definition]) for key, definition in sorted(parts.items()))
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    with databases.server({}) as server_url:
        FILE.write_text(written(made(server_url)), encoding="utf-8")
