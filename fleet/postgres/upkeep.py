"""What keeps the tables small: autovacuum, and those who hold it back. Read-only."""

from dataclasses import dataclass

from fleet.postgres.database import Connection, Statement, rows_of

# As autovacuum reckons: a table's own options go before the server's settings.
UPKEEP = Statement("""
SELECT pg_class.relname::text AS "table",
  coalesce(own.enabled, 'true')::bool AS enabled,
  pg_stat_get_dead_tuples(pg_class.oid) AS dead,
  (coalesce(own.threshold, current_setting('autovacuum_vacuum_threshold'))::float8
    + coalesce(own.factor, current_setting('autovacuum_vacuum_scale_factor'))::float8 * greatest(reltuples, 0))::float8
    AS threshold
FROM pg_class
CROSS JOIN LATERAL (
  SELECT max(option_value) FILTER (WHERE option_name = 'autovacuum_enabled') AS enabled,
    max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold') AS threshold,
    max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor') AS factor
  FROM pg_options_to_table(pg_class.reloptions)
) AS own
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fleet') AND relkind = 'r'
ORDER BY relname
""")

MAY_WATCH = Statement("""
SELECT pg_has_role('pg_read_all_stats', 'USAGE')
""")

# A session of autovacuum holds back nobody. A standby with feedback has a snapshot here and no transaction.
HOLDERS = Statement("""
SELECT CASE WHEN datid IS NULL THEN 'standby' ELSE 'session' END AS kind,
  pid::text AS name,
  extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
  greatest(age(backend_xmin), age(backend_xid)) AS transactions
FROM pg_stat_activity
WHERE (datname = current_database() OR datid IS NULL)
  AND pid <> pg_backend_pid()
  AND backend_type <> 'autovacuum worker'
  AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)
UNION ALL
SELECT 'prepared transaction', gid, extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)
FROM pg_prepared_xacts
WHERE database = current_database()
UNION ALL
SELECT CASE WHEN active THEN 'replication slot in use' ELSE 'replication slot' END, slot_name::text, NULL, age(xmin)
FROM pg_replication_slots
WHERE xmin IS NOT NULL
ORDER BY seconds DESC NULLS LAST, transactions DESC NULLS LAST
LIMIT 10
""")


class MayNotWatch(Exception):
    """The role is not shown what the sessions of others do."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How many dead rows a table has, and from how many on autovacuum comes, unless it is kept off the table."""

    table: str
    enabled: bool
    dead: int
    threshold: float


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps old versions of rows: `seconds` is None where only the number of transactions since is known."""

    kind: str
    name: str
    seconds: float | None
    transactions: int | None


def upkeep(connection: Connection) -> list[Upkeep]:
    return rows_of(connection, UPKEEP, Upkeep)


def holders(connection: Connection) -> list[Holder]:
    """Return what holds back vacuum here, the oldest first. Raises MayNotWatch."""
    row = connection.execute(MAY_WATCH.native).fetchone()
    if not (row and row[0]):
        raise MayNotWatch
    return rows_of(connection, HOLDERS, Holder)
