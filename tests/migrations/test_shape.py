"""The description of the schema that `fleet doctor` compares with is what the migrations make."""

from fleet.postgres import shape
from tests.migrations.shape import FILE, made, written


def test_the_description_is_what_the_migrations_make(server_url: str) -> None:
    parts = made(server_url)
    assert shape.wanted() == parts, "write it anew: python -m tests.migrations.shape"
    assert FILE.read_text(encoding="utf-8") == written(parts)
    assert {key[0] for key in parts} == set(shape.KINDS)


def test_what_belongs_to_a_missing_table_or_column_is_told_once() -> None:
    without_table = {key: definition for key, definition in shape.wanted().items() if key[1] != "queue"}
    assert [each[:3] for each in shape.differences(without_table)] == [("table", "queue", "")]
    without_column = {key: definition for key, definition in shape.wanted().items() if key[1:] != ("task", "queue")}
    (missing,) = shape.differences(without_column)
    assert (missing.kind, missing.wanted, missing.found) == ("column", "text NOT NULL", None)


def test_what_is_there_besides_and_an_option_of_another_value_are_left_alone() -> None:
    there = shape.wanted() | {
        ("index", "task", "ours"): "CREATE INDEX ours ON fleet.task USING btree (created_at)",
        ("option", "task", "fillfactor"): "70",
    }
    assert shape.differences(there) == []
