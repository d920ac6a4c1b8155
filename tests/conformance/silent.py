"""A pytest plugin for runs without notifications, as on servers that have neither LISTEN nor triggers: workers poll alone."""

import psycopg
import pytest

from fleet.postgres import listen, migrate
from fleet.postgres.database import Database
from tests.conformance.exceptions import SILENT_REASONS

_upgrade = migrate.upgrade


def _upgrade_untriggered(database: Database, *, force: bool = False) -> list[migrate.Misfit]:
    misfits = _upgrade(database, force=force)
    with psycopg.connect(database.conninfo("test"), autocommit=True) as connection:
        connection.execute("ALTER TABLE fleet.task DISABLE TRIGGER wake")
    return misfits


async def _refuse(connection: object) -> None:
    raise psycopg.errors.FeatureNotSupported("LISTEN is not supported")


migrate.upgrade = _upgrade_untriggered
listen.listen = _refuse


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for pattern, reason in SILENT_REASONS.items():
            if pattern in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"without notifications: {reason}"))
