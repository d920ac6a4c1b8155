"""Every revision after the first is one that workers can go on under; what takes away says that it is a contract."""

from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from fleet.postgres import migrate
from tests.migrations.lint import complaints
from tests.migrations.test_upgrade import with_a_second_revision

HARMLESS = [
    "ALTER TABLE fleet.task ADD COLUMN extra text;",
    "ALTER TABLE fleet.task ADD COLUMN extra text NOT NULL DEFAULT '';",
    "COMMIT; CREATE INDEX CONCURRENTLY task_extra ON fleet.task (name); BEGIN;",
    "CREATE TABLE fleet.note (id uuid PRIMARY KEY, body text); CREATE INDEX note_body ON fleet.note (body);",
    "ALTER TABLE fleet.task ADD CONSTRAINT positive CHECK (attempt >= 0) NOT VALID;",
]
HARMFUL = {
    "ALTER TABLE fleet.task ADD COLUMN extra text NOT NULL;": "adding-required-field",
    "CREATE INDEX task_name ON fleet.task (name);": "require-concurrent-index-creation",
    "ALTER TABLE fleet.task ALTER COLUMN name TYPE varchar(9);": "changing-column-type",
    "ALTER TABLE fleet.task ADD CONSTRAINT positive CHECK (attempt >= 0);": "constraint-missing-not-valid",
    "ALTER TABLE fleet.task ALTER COLUMN result SET NOT NULL;": "adding-not-nullable-field",
}
TAKING = {
    "ALTER TABLE fleet.task DROP COLUMN result;": "ban-drop-column",
    "ALTER TABLE fleet.task RENAME COLUMN result TO outcome;": "renaming-column",
    "ALTER TABLE fleet.counter RENAME TO total;": "renaming-table",
    "DROP TABLE fleet.counter;": "ban-drop-table",
}


def in_transaction(sql: str) -> str:
    return f"BEGIN;\n{sql}\nCOMMIT;\n"


def broken() -> dict[str, set[str]]:
    """The rules that each revision after the first breaks."""
    return {
        each.revision: complaints(
            migrate.statements(f"{each.down_revision}:{each.revision}"),
            contract=getattr(each.module, "contract", False),
        )
        for each in ScriptDirectory(str(migrate._scripts())).walk_revisions()
        if each.down_revision is not None
    }


def test_every_revision_after_the_first_is_one_that_workers_can_go_on_under() -> None:
    assert not any(broken().values()), broken()


@pytest.mark.parametrize(("body", "rules"), [
    ("op.execute('CREATE INDEX extra ON fleet.task (name)')", {"require-concurrent-index-creation"}),
    ("op.execute('ALTER TABLE fleet.task DROP COLUMN result')", {"ban-drop-column"}),
    ("op.execute('ALTER TABLE fleet.task ADD COLUMN extra text')", set()),
    (
        """with op.get_context().autocommit_block(): op.execute('CREATE INDEX CONCURRENTLY extra ON fleet.task (name)')""",
        set(),
    ),
], ids=lambda value: "" if isinstance(value, str) else " ".join(value))  # fmt: skip
def test_what_a_revision_of_ours_would_break_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, rules: set[str]
) -> None:
    with_a_second_revision(tmp_path, monkeypatch, body)
    assert broken() == {"0002": rules}


@pytest.mark.parametrize("sql", HARMLESS)
def test_what_harms_nobody_passes(sql: str) -> None:
    assert complaints(in_transaction(sql), contract=False) == set()


@pytest.mark.parametrize("sql", HARMFUL)
def test_what_locks_for_long_or_breaks_writers_is_found_in_a_contract_too(sql: str) -> None:
    for contract in (False, True):
        assert HARMFUL[sql] in complaints(in_transaction(sql), contract=contract)


@pytest.mark.parametrize("sql", TAKING)
def test_taking_away_is_for_a_contract_alone(sql: str) -> None:
    assert TAKING[sql] in complaints(in_transaction(sql), contract=False)
    assert TAKING[sql] not in complaints(in_transaction(sql), contract=True)
