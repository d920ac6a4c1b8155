"""What the migrations make, as PostgreSQL describes it, compared with what is there. What else is there is nobody's harm.

`shape.json` holds the description; a test compares it with the migrations, and says how it is written anew.
"""

import functools
import json
from importlib.resources import files
from typing import NamedTuple

from fleet.postgres.database import Connection, Statement

Shape = dict[tuple[str, str, str], str]

# In the order in which they are mended: what others stand on comes first.
KINDS = ("table", "column", "not null", "default", "option", "constraint", "function", "index", "trigger")

# Names are written in full whatever the reader's search_path is. An index that serves a constraint comes with it.
FOUND = Statement("""
WITH home AS MATERIALIZED (
  SELECT oid, relname, reloptions
  FROM pg_class
  WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fleet') AND relkind = 'r'
), field AS MATERIALIZED (
  SELECT home.relname, attname, atttypid, atttypmod, attnotnull,
    CASE WHEN attidentity = 'a' THEN 'GENERATED ALWAYS AS IDENTITY'
         ELSE coalesce(pg_get_expr(adbin, adrelid), '') END AS filled
  FROM home
  JOIN pg_attribute ON attrelid = home.oid AND attnum > 0 AND NOT attisdropped
  LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
)
SELECT 'table' AS kind, relname::text AS "table", '' AS name, '' AS definition FROM home
UNION ALL
SELECT 'column', relname, attname, format_type(atttypid, atttypmod) FROM field
UNION ALL
SELECT 'not null', relname, attname, CASE WHEN attnotnull THEN 'NOT NULL' ELSE '' END FROM field
UNION ALL
SELECT 'default', relname, attname, filled FROM field
UNION ALL
SELECT 'option', relname, split_part(option, '=', 1), split_part(option, '=', 2)
FROM home
CROSS JOIN unnest(reloptions) AS option
UNION ALL
SELECT 'constraint', relname, conname, pg_get_constraintdef(pg_constraint.oid)
FROM home
JOIN pg_constraint ON conrelid = home.oid AND contype IN ('p', 'u', 'c')
UNION ALL
SELECT 'function', '', pg_proc.oid::regprocedure::text, pg_get_functiondef(pg_proc.oid)
FROM pg_proc
WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fleet')
UNION ALL
SELECT 'index', home.relname, pg_class.relname,
  pg_get_indexdef(indexrelid) || CASE WHEN indisvalid THEN '' ELSE ' (invalid)' END
FROM home
JOIN pg_index ON indrelid = home.oid
JOIN pg_class ON pg_class.oid = indexrelid
WHERE NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
UNION ALL
SELECT 'trigger', relname, tgname,
  pg_get_triggerdef(pg_trigger.oid) || CASE WHEN tgenabled IN ('O', 'A') THEN '' ELSE ' (disabled)' END
FROM home
JOIN pg_trigger ON tgrelid = home.oid AND NOT tgisinternal
ORDER BY 1, 2, 3
""")


class Difference(NamedTuple):
    """A part that is not as the migrations made it; `found` is None where it is missing."""

    kind: str
    table: str
    name: str
    wanted: str
    found: str | None


def found(connection: Connection) -> Shape:
    """Return the definition of each part of the schema, by kind, table and name."""
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        return {(row[0], row[1], row[2]): row[3] for row in connection.execute(FOUND.native).fetchall()}


@functools.cache
def wanted() -> Shape:
    """Return the same as the migrations make it."""
    parts: list[list[str]] = json.loads(files("fleet.postgres").joinpath("shape.json").read_text(encoding="utf-8"))
    return {(kind, table, name): definition for kind, table, name, definition in parts}


def differences(there: Shape) -> list[Difference]:
    """Return what is missing or was changed, each fault once, in the order in which it is mended.

    An option that somebody has given another value is left to them.
    """
    parts = wanted()
    wrong = [
        Difference(*key, definition, there.get(key))
        for key, definition in parts.items()
        if there.get(key) != definition and not (key[0] == "option" and key in there)
    ]
    missing = {(each.table, each.name) for each in wrong if each.kind in ("table", "column") and each.found is None}
    told = [_whole(each, parts) for each in wrong if not _comes_with_another(each, missing)]
    return sorted(told, key=lambda each: KINDS.index(each.kind))


def _comes_with_another(each: Difference, missing: set[tuple[str, str]]) -> bool:
    """Tell whether a part is missing only because its table or column is."""
    if each.kind == "table":
        return False
    return (each.table, "") in missing or (each.kind in ("not null", "default") and (each.table, each.name) in missing)


def _whole(each: Difference, parts: Shape) -> Difference:
    """Complete the definition of a column that is missing."""
    if each.kind != "column" or each.found is not None:
        return each
    filled, not_null = (parts[kind, each.table, each.name] for kind in ("default", "not null"))
    words = [each.wanted, filled if "IDENTITY" in filled else filled and f"DEFAULT {filled}", not_null]
    return each._replace(wanted=" ".join(word for word in words if word))
