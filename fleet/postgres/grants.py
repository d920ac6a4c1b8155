"""Who may do what: one role for each job, the rights that its statements need, and the SQL that makes all of them."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from psycopg import sql

from fleet.postgres.database import Connection, Statement, identifier
from fleet.postgres.tables import metadata

VERSION = "fleet_alembic_version"
# The hashes of the API's tokens are the API's alone; who makes tokens acts as the owner. What users put in and get out
# nobody needs who only looks.
FROM_WORKERS = {"api_token": set(metadata.tables["fleet.api_token"].columns.keys())}
HIDDEN = FROM_WORKERS | {"task": {"args", "result"}}


class Role(StrEnum):
    """A job that a session does. Login roles are granted the roles of all the jobs that they do."""

    OWNER = "owner"
    MIGRATOR = "migrator"
    WORKER = "worker"
    API = "api"
    READER = "reader"


class Right(NamedTuple):
    """One privilege on a table of the fleet; without columns on all of it, later ones too."""

    table: str
    privilege: str
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.privilege} ({', '.join(self.columns)})" if self.columns else self.privilege


def _on(table: str, *privileges: str) -> Iterator[Right]:
    return (Right(table, privilege) for privilege in privileges)


def _reads(hidden: Mapping[str, set[str]]) -> Iterator[Right]:
    """Yield the right to read every table; of one that has something to hide, only the other columns."""
    yield Right(VERSION, "SELECT")
    for table in metadata.sorted_tables:
        kept_back = hidden.get(table.name, set())
        shown = tuple(column.name for column in table.columns if column.name not in kept_back)
        if shown:
            yield Right(table.name, "SELECT", shown if kept_back else ())


# By the statements in this folder. A worker also submits, because handlers do; whatever a person decides leaves a row in
# `audit`, where only the API writes. The API may not claim, and may change no result, arguments or attempt. Writing to a
# key of `submission` is how a second submission waits for the first, and changes nothing.
NEEDS: dict[Role, frozenset[Right]] = {
    Role.WORKER: frozenset([
        *_reads(FROM_WORKERS),
        *_on("task", "INSERT", "UPDATE", "DELETE"),
        *_on("lease", "INSERT", "UPDATE", "DELETE"),
        *_on("queue", "INSERT", "UPDATE"),
        *_on("cancel_request", "DELETE"),
        *_on("attempt", "INSERT", "DELETE"),
        *_on("submission", "INSERT", "DELETE"),
        Right("submission", "UPDATE", ("key",)),
        *_on("counter", "INSERT", "UPDATE", "DELETE"),
    ]),
    Role.API: frozenset([
        *_reads({}),
        *_on("task", "INSERT"),
        Right("task", "UPDATE", (
            "state", "run_at", "expires_at", "failures", "losses", "lease_id", "finished_at", "cancel_requested",
            "failure_code", "failure_reason", "resolved_at",
        )),
        *_on("queue", "INSERT", "UPDATE"),
        *_on("cancel_request", "INSERT"),
        *_on("submission", "INSERT"),
        Right("submission", "UPDATE", ("key",)),
        *_on("audit", "INSERT"),
        Right("api_token", "UPDATE", ("last_used_at",)),
    ]),
    Role.READER: frozenset(_reads(HIDDEN)),
}  # fmt: skip

_HEAD = """\
-- The roles of a fleet, and what each may do. Run this in the fleet's database, as an administrator: before the first
-- `fleet db upgrade`, and again after every one. It may be repeated, and does nothing where nothing is missing.
-- Then let the users that log in do their jobs, such as: GRANT {worker} TO my_worker; GRANT {migrator} TO my_deployment

BEGIN;
SET LOCAL lock_timeout = '5s';
"""

_ROLES = """
DO $grants$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY[{literals}] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
    END IF;
  END LOOP;
  IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
    GRANT {owner} TO CURRENT_USER; -- what follows gives things to the owner, and acts for it
  END IF;
  EXECUTE format('GRANT CONNECT ON DATABASE %I TO {all}', current_database());
END
$grants$;

GRANT {owner} TO {migrator};
"""

# A table that has its owner already is left alone: to ask again would lock it.
_OWNER = """
-- Everything belongs to the owner, and a migrator acts as the owner.
DO $grants$
DECLARE
  owner oid := (SELECT oid FROM pg_roles WHERE rolname = {literal});
  foreigner text;
BEGIN
  IF to_regnamespace('fleet') IS NULL THEN
    CREATE SCHEMA fleet AUTHORIZATION {owner};
  ELSIF (SELECT nspowner FROM pg_namespace WHERE nspname = 'fleet') <> owner THEN
    ALTER SCHEMA fleet OWNER TO {owner};
  END IF;
  FOR foreigner IN
    SELECT format('TABLE %s', oid::regclass)
    FROM pg_class
    WHERE relnamespace = 'fleet'::regnamespace AND relkind IN ('r', 'p') AND relowner <> owner
    UNION ALL
    SELECT format('FUNCTION %s', oid::regprocedure)
    FROM pg_proc
    WHERE pronamespace = 'fleet'::regnamespace AND proowner <> owner
  LOOP
    EXECUTE format('ALTER %s OWNER TO {owner}', foreigner);
  END LOOP;
END
$grants$;

GRANT USAGE ON SCHEMA fleet TO {all};
"""

_LATER = """
-- What a later upgrade makes is open to those who must go on, until this is run again; a reader waits for that.
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA fleet
  GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {worker}, {api};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA fleet
  GRANT USAGE, SELECT ON SEQUENCES TO {worker}, {api};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA fleet
  GRANT EXECUTE ON FUNCTIONS TO {worker}, {api};
"""

_TABLES = """
DO $grants$
BEGIN
  IF to_regclass('fleet.task') IS NULL THEN
    RAISE NOTICE 'there are no tables yet: run this again after fleet db upgrade';
    RETURN;
  END IF;
  REVOKE ALL ON ALL TABLES IN SCHEMA fleet FROM {worker}, {api}, {reader};
  GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA fleet TO {worker}, {api};
  GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fleet TO {worker}, {api};
{grants}
END
$grants$;
"""

_WATCH = """
-- To see which sessions hold back vacuum: `fleet doctor` asks for it.
DO $grants$
BEGIN
  GRANT pg_read_all_stats TO {reader};
EXCEPTION WHEN insufficient_privilege THEN
  RAISE NOTICE 'a superuser must run: GRANT pg_read_all_stats TO {reader}';
END
$grants$;

COMMIT;
"""

# By the catalogue, which everybody may read: a name such as 'fleet.task'::regclass already takes USAGE on the schema.
# What is not there is no question of rights.
HELD = Statement("""
SELECT given.place::int,
  coalesce(CASE WHEN given.columns = '' THEN has_table_privilege(pg_class.oid, given.privilege)
                ELSE (SELECT bool_and(has_column_privilege(pg_class.oid, attnum, given.privilege))
                      FROM pg_attribute
                      WHERE attrelid = pg_class.oid AND attname = ANY (string_to_array(given.columns, ',')))
           END, true) AS held
FROM unnest(:tables::text[], :privileges::text[], :columns::text[])
  WITH ORDINALITY AS given ("table", privilege, columns, place)
LEFT JOIN pg_class ON pg_class.relname = given."table"
  AND pg_class.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fleet')
ORDER BY given.place
""")

MAY_ENTER = Statement("""
SELECT coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = 'fleet'), true)
""")


def statements(names: Mapping[Role, str]) -> str:
    """Return the SQL that makes the roles, called by these names, and gives each what its job needs. Idempotent."""
    quoted = {role.value: identifier(names[role]) for role in Role}
    grants = "\n".join(f"  {grant};" for role in NEEDS for grant in grants_of(NEEDS[role], names[role]))
    words = {
        **quoted,
        "all": ", ".join(quoted[role] for role in (Role.MIGRATOR, *NEEDS)),
        "literals": ", ".join(sql.Literal(names[role]).as_string() for role in Role),
        "literal": sql.Literal(names[Role.OWNER]).as_string(),
        "grants": grants,
    }
    return "".join(part.format(**words) for part in (_HEAD, _ROLES, _OWNER, _LATER, _TABLES, _WATCH))


def grants_of(rights: Iterable[Right], role: str) -> list[str]:
    """Return one statement for each table, in alphabetic order."""
    by_table = groupby(sorted(rights), key=lambda right: right.table)
    return [f"GRANT {', '.join(map(str, found))} ON fleet.{table} TO {identifier(role)}" for table, found in by_table]


def distinctive(job: Role) -> frozenset[Right]:
    """Return the rights that only this job needs: who holds one of them is meant to do it."""
    others = frozenset[Right]().union(*(needs for role, needs in NEEDS.items() if role is not job))
    wholly = {(right.table, right.privilege) for right in others if not right.columns}
    return frozenset(right for right in NEEDS[job] - others if right[:2] not in wholly)


def held(connection: Connection) -> tuple[bool, frozenset[Right]]:
    """Return whether the session's role may enter the schema, and what it holds of all that any job needs."""
    rights = sorted(frozenset[Right]().union(*NEEDS.values()))
    enters = connection.execute(MAY_ENTER.native).fetchone()
    rows = connection.execute(
        HELD.native,
        {
            "tables": [right.table for right in rights],
            "privileges": [right.privilege for right in rights],
            "columns": [",".join(right.columns) for right in rights],
        },
    ).fetchall()
    return bool(enters and enters[0]), frozenset(right for right, row in zip(rights, rows, strict=True) if row[1])
