"""A pytest plugin for runs through a pooler: settings as its users have them, and what cannot hold there, with its reason."""

from typing import Any

import psycopg
import pytest

from fleet.config import Settings
from tests.conformance.exceptions import REASONS

# PgBouncer before 1.21 does not know prepared statements: no test's settings ask for them, and no connection of its own
# does. The first conftest makes settings as soon as it is imported, so it is too late for a hook.
_changes: tuple[tuple[Any, str, object], ...] = (
    (Settings.__init__, "prepared_statements", False),
    (psycopg.Connection.connect.__func__, "prepare_threshold", None),  # type: ignore[attr-defined]
    (psycopg.AsyncConnection.connect.__func__, "prepare_threshold", None),  # type: ignore[attr-defined]
)
for _function, _option, _value in _changes:
    _function.__kwdefaults__[_option] = _value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for pattern, reason in REASONS.items():
            if pattern in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"through a pooler: {reason}"))
