"""A journal of every change to the fleet's tables, kept by triggers. For tests and rehearsals: it doubles the writing."""

from typing import Any, LiteralString

import psycopg

from fleet.postgres.database import Statement

# Arguments, results and reasons beyond 2 KB are left out; so are arguments and results that an update did not change.
# The number and the clock are taken under the lock on the changed row: for one row they are in the true order. `began` is
# when the client's statement arrived. The function has its owner's rights, so that no worker needs any on the journal.
INSTALL: LiteralString = """
CREATE SCHEMA IF NOT EXISTS fleet_journal;

CREATE TABLE IF NOT EXISTS fleet_journal.change (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL,
  began timestamptz NOT NULL,
  txid bigint NOT NULL,
  "table" text NOT NULL,
  old jsonb,
  new jsonb
);

CREATE OR REPLACE FUNCTION fleet_journal.shown(whole jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT whole - ARRAY(SELECT key
                       FROM unnest('{args, result, failure_reason, detail}'::text[]) AS key
                       WHERE octet_length(whole ->> key) > 2048)
$$;

CREATE OR REPLACE FUNCTION fleet_journal.note() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before jsonb;
  after jsonb;
  large text;
BEGIN
  IF TG_OP <> 'INSERT' THEN
    before := fleet_journal.shown(to_jsonb(OLD));
  END IF;
  IF TG_OP <> 'DELETE' THEN
    after := fleet_journal.shown(to_jsonb(NEW));
  END IF;
  IF TG_OP = 'UPDATE' THEN
    FOREACH large IN ARRAY '{args, result}'::text[] LOOP
      IF before -> large = after -> large THEN
        before := before - large;
        after := after - large;
      END IF;
    END LOOP;
  END IF;
  INSERT INTO fleet_journal.change (at, began, txid, "table", old, new)
  VALUES (clock_timestamp(), statement_timestamp(), pg_current_xact_id()::text::bigint, TG_TABLE_NAME, before, after);
  RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON fleet.task
FOR EACH ROW EXECUTE FUNCTION fleet_journal.note();

CREATE OR REPLACE TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON fleet.lease
FOR EACH ROW EXECUTE FUNCTION fleet_journal.note();

CREATE OR REPLACE TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON fleet.attempt
FOR EACH ROW EXECUTE FUNCTION fleet_journal.note();

CREATE OR REPLACE TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON fleet.counter
FOR EACH ROW EXECUTE FUNCTION fleet_journal.note();

CREATE OR REPLACE TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON fleet.submission
FOR EACH ROW EXECUTE FUNCTION fleet_journal.note();

CREATE OR REPLACE TRIGGER journal AFTER INSERT OR UPDATE OR DELETE ON fleet.audit
FOR EACH ROW EXECUTE FUNCTION fleet_journal.note();
"""

REMOVE: LiteralString = "DROP SCHEMA IF EXISTS fleet_journal CASCADE"

# A dump is taken in one snapshot, however long it takes.
BEGIN_DUMP: LiteralString = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0
"""

IS_INSTALLED = Statement("SELECT to_regclass('fleet_journal.change') IS NOT NULL")

# Each row is one line of a history, as JSON text.
CHANGES: LiteralString = """
SELECT json_build_object('at', extract(epoch FROM at), 'by', 'database', 'what', 'change', 'n', n,
  'began', extract(epoch FROM began), 'txid', txid, 'table', "table", 'old', old, 'new', new)::text
FROM fleet_journal.change
ORDER BY n
"""

_ROWS: LiteralString = """
SELECT json_build_object('at', extract(epoch FROM clock_timestamp()), 'by', 'database', 'what', 'row', 'table', '{table}',
  'row', to_jsonb(found) - ARRAY(SELECT key
                                 FROM unnest('{{args, result, failure_reason, detail}}'::text[]) AS key
                                 WHERE octet_length(to_jsonb(found) ->> key) > 2048))::text
FROM fleet.{table} AS found
"""

_TABLES: tuple[LiteralString, ...] = ("task", "lease", "attempt", "counter", "submission", "audit", "queue")


async def install(connection: psycopg.AsyncConnection[Any]) -> None:
    """Write down every change to tasks, leases, attempts, counters, submissions and audits from now on. Safe to repeat."""
    await connection.execute(INSTALL)


def install_sync(connection: psycopg.Connection[Any]) -> None:
    """The same on a synchronous connection."""
    connection.execute(INSTALL)


async def remove(connection: psycopg.AsyncConnection[Any]) -> None:
    """Take the triggers and the journal away."""
    await connection.execute(REMOVE)


def queries(*, installed: bool) -> list[LiteralString]:
    """Return what to ask, in one snapshot, for the lines of a dump: the changes, if they are kept, and all rows."""
    rows: list[LiteralString] = [_ROWS.format(table=table) for table in _TABLES]
    return [CHANGES, *rows] if installed else rows
