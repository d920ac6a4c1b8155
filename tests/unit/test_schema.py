"""Which schemas this code works with, and what it says to the others."""

import pytest
from alembic.script import ScriptDirectory

from fleet import schema
from fleet.postgres import migrate


def test_a_schema_has_the_number_of_its_revision() -> None:
    assert [schema.number_of(name) for name in ("0001", "0042", "9999")] == [1, 42, 9999]
    assert [schema.number_of(name) for name in (None, "", "1", "00001", "later", "0x01")] == [None] * 6


@pytest.mark.parametrize(("revision", "words"), [
    (None, "no fleet schema yet. Run `fleet db upgrade`"),
    ("0001", "at revision 0001, this code needs 0002. Run `fleet db upgrade`"),
    ("0002", None), ("0003", None), ("0004", None),
    ("0005", "does not know. Upgrade pgfleet"), ("later", "does not know. Upgrade pgfleet"),
])  # fmt: skip
def test_both_ends_of_the_range_fit_and_nothing_beyond(
    monkeypatch: pytest.MonkeyPatch, revision: str | None, words: str | None
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_MIN", 2)
    monkeypatch.setattr(schema, "SCHEMA_MAX", 4)
    wrong = schema.mismatch(revision)
    if words is None:
        assert wrong is None
    else:
        assert words in str(wrong)


def test_revisions_are_numbered_without_gaps_and_the_newest_is_the_last_but_one_that_this_code_works_with() -> None:
    revisions = [each.revision for each in ScriptDirectory(str(migrate._scripts())).walk_revisions()][::-1]
    assert [schema.number_of(name) for name in revisions] == list(range(1, len(revisions) + 1))
    assert len(revisions) == schema.SCHEMA_MAX - 1
    assert 1 <= schema.SCHEMA_MIN <= len(revisions)
