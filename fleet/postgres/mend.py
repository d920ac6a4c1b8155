"""Statements that mend what the doctor finds. A person runs them; nothing here does."""

from psycopg import sql

from fleet.postgres.database import identifier

_STATISTICS = "GRANT pg_read_all_stats TO {role}"


def let_watch(role: str) -> str:
    """Let a role see what the sessions of others do."""
    return _STATISTICS.format(role=identifier(role))


def setting(name: str, wanted: str, *, source: str, database: str, role: str) -> str | None:
    """Take back a setting where it was made; None where that was on a command line or by the client."""
    match source:
        case "database":
            return f"ALTER DATABASE {identifier(database)} RESET {name}"
        case "user":
            return f"ALTER ROLE {identifier(role)} RESET {name}"
        case "database user":
            return f"ALTER ROLE {identifier(role)} IN DATABASE {identifier(database)} RESET {name}"
        case "global":
            return f"ALTER ROLE ALL RESET {name}"
        case "default" | "configuration file":
            return f"ALTER SYSTEM SET {name} = {_text(wanted)}; SELECT pg_reload_conf()"
    return None


def no_standbys() -> str:
    """Let commits wait for no standby."""
    return "ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf()"


def session(role: str, missing: dict[str, str]) -> str:
    """Give a role what its sessions ask for in vain."""
    return "; ".join(f"ALTER ROLE {identifier(role)} SET {name} = {_text(value)}" for name, value in missing.items())


def connections(whose: str, wanted: int, *, database: str, role: str) -> str:
    """Lift a limit: a role's, a database's or the server's, which takes a restart."""
    match whose:
        case "role":
            return f"ALTER ROLE {identifier(role)} CONNECTION LIMIT -1"
        case "database":
            return f"ALTER DATABASE {identifier(database)} CONNECTION LIMIT -1"
    return f"ALTER SYSTEM SET max_connections = {wanted}"


def encrypted() -> str:
    """Ask for an encrypted session with a server whose certificate is checked."""
    return "export PGSSLMODE=verify-full PGSSLROOTCERT=/the/path/of/the/ca.crt"


def logged(table: str) -> str:
    """Let a table of the fleet outlive a crash."""
    return f"ALTER TABLE fleet.{identifier(table)} SET LOGGED"


def hold(kind: str, name: str) -> str | None:
    """End what holds back vacuum; None where only somebody else can."""
    match kind:
        case "session":
            return f"SELECT pg_terminate_backend({name})"
        case "prepared transaction":
            return f"ROLLBACK PREPARED {_text(name)}"
        case "replication slot":
            return f"SELECT pg_drop_replication_slot({_text(name)})"
    return None


def part(kind: str, table: str, name: str, wanted: str, *, missing: bool) -> str | None:
    """Make a part of the schema as the migrations made it; None for a whole table, whose rows are gone too."""
    alter, what = f"ALTER TABLE fleet.{identifier(table)}", identifier(name)
    statement = None
    match kind:
        case "column" | "not null" | "default":
            statement = f"{alter} {_column(kind, what, wanted, missing=missing)}"
        case "option":
            statement = f"{alter} SET ({name} = {wanted})"
        case "constraint":
            drop = "" if missing else f"DROP CONSTRAINT {what}, "
            statement = f"{alter} {drop}ADD CONSTRAINT {what} {wanted}"
        case "index":
            drop = "" if missing else f"DROP INDEX CONCURRENTLY fleet.{what}; "
            statement = drop + wanted.replace("INDEX", "INDEX CONCURRENTLY", 1)
        case "function":
            statement = wanted.strip()
        case "trigger":
            statement = wanted.replace("CREATE", "CREATE OR REPLACE", 1)
    return statement


def _column(kind: str, what: str, wanted: str, *, missing: bool) -> str:
    match kind:
        case "column" if missing:
            return f"ADD COLUMN {what} {wanted}"
        case "column":
            return f"ALTER COLUMN {what} TYPE {wanted} USING {what}::{wanted}"
        case "not null":
            return f"ALTER COLUMN {what} {'SET' if wanted else 'DROP'} NOT NULL"
    if "IDENTITY" in wanted:
        return f"ALTER COLUMN {what} ADD {wanted}"
    return f"ALTER COLUMN {what} {f'SET DEFAULT {wanted}' if wanted else 'DROP DEFAULT'}"


def keep_small(table: str, *, enabled: bool) -> str:
    """Let autovacuum come to a table again, and do now what it did not."""
    reset = "" if enabled else f"ALTER TABLE fleet.{identifier(table)} RESET (autovacuum_enabled); "
    return f"{reset}VACUUM (ANALYZE) fleet.{identifier(table)}"


def enter(role: str) -> str:
    """Let a role into the schema."""
    return f"GRANT USAGE ON SCHEMA fleet TO {identifier(role)}"


def _text(value: str) -> str:
    return sql.Literal(value).as_string()
