"""A pytest plugin for runs through a pooler: settings as its users have them, and what cannot hold there, with its reason."""

import pytest

from fleet.config import Settings
from tests.conformance.exceptions import REASONS

# PgBouncer before 1.21 does not know prepared statements: no test's settings ask for them. The first conftest makes some
# as soon as it is imported, so it is too late for a hook.
_defaults = Settings.__init__.__kwdefaults__
assert _defaults is not None
_defaults["prepared_statements"] = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for pattern, reason in REASONS.items():
            if pattern in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"through a pooler: {reason}"))
