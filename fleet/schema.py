"""Which schemas this code works with. A schema's number is that of its newest revision: 0007 makes schema 7.

Each release brings at most one revision, and a revision only adds to what the release before it works with. So code works
with the schema after its own, too, and a fleet is upgraded without a stop: the schema first, then one worker after another.
"""

import re

from fleet.errors import SchemaMismatch

SCHEMA_MIN = 1  #: the oldest that has everything this code reads and writes
SCHEMA_MAX = 2  #: the newest it works with: one more than its own newest revision


def number_of(revision: str | None) -> int | None:
    """Return the schema's number; None where there is no revision, or none of fleet's."""
    return int(revision) if revision and re.fullmatch("[0-9]{4}", revision) else None


def mismatch(revision: str | None) -> SchemaMismatch | None:
    """Say why this code must not write to a schema at this revision, and what to do; None where it fits."""
    number = number_of(revision)
    if number is not None and SCHEMA_MIN <= number <= SCHEMA_MAX:
        return None
    if revision is None:
        return SchemaMismatch("the database has no fleet schema yet. Run `fleet db upgrade`.")
    if number is not None and number < SCHEMA_MIN:
        return SchemaMismatch(
            f"the schema is at revision {revision}, this code needs {SCHEMA_MIN:04}. Run `fleet db upgrade`."
        )
    return SchemaMismatch(
        f"the schema is at revision {revision}, which this version of pgfleet (schemas {SCHEMA_MIN} to {SCHEMA_MAX}) "
        "does not know. Upgrade pgfleet."
    )
