"""What the doctor asks. Read-only and bounded; one question for each check, so that one that fails spoils no other."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from psycopg import sql
from psycopg.conninfo import make_conninfo

from fleet.postgres.database import Connection, Database, Statement, rows_of

COUNT_MAX = 10_000  # rows are counted so far and no further
ROUND_TRIPS = 5
NOTIFICATION_SECONDS = 2.0

SERVER = Statement("""
SELECT current_setting('server_version') AS version,
  current_setting('server_version_num')::int AS number,
  pg_is_in_recovery() AS in_recovery
""")

SETTINGS = Statement("""
SELECT name, setting AS value, source, current_database()::text AS database, session_user::text AS role
FROM pg_settings
WHERE lower(name) = ANY (:names::text[])
ORDER BY name
""")

UNLOGGED = Statement("""
SELECT relname::text
FROM pg_class
WHERE relnamespace = to_regnamespace('fleet') AND relkind = 'r' AND relpersistence <> 'p'
ORDER BY relname
""")

# The state of standbys is empty for those who may not see it; the rows are there.
STANDBYS = Statement("""
SELECT current_setting('synchronous_standby_names') AS awaited,
  (SELECT count(*) FROM pg_stat_replication) AS number,
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS synchronous,
  pg_has_role('pg_read_all_stats', 'USAGE') AS shown
""")

# The columns of other roles' sessions are empty for those who may not see them; the rows are there.
CONNECTIONS = Statement("""
WITH client AS MATERIALIZED (
  SELECT datname, usename
  FROM pg_stat_activity
  WHERE backend_type = 'client backend' OR (backend_type IS NULL AND datid IS NOT NULL)
), reserved AS (
  SELECT current_setting('superuser_reserved_connections')::int
    + coalesce(current_setting('reserved_connections', true)::int, 0) AS number
)
SELECT current_database()::text AS database,
  session_user::text AS role,
  current_setting('max_connections')::int - reserved.number AS server_max,
  (SELECT count(*) FROM client) AS server_used,
  pg_database.datconnlimit AS database_max,
  (SELECT count(*) FROM client WHERE datname = current_database()) AS database_used,
  pg_roles.rolconnlimit AS role_max,
  (SELECT count(*) FROM client WHERE usename = session_user) AS role_used,
  (SELECT count(*) FROM fleet.lease
   WHERE state IN ('LIVE', 'DRAINING') AND expires_at > clock_timestamp()) AS workers
FROM reserved
CROSS JOIN pg_database
CROSS JOIN pg_roles
WHERE pg_database.datname = current_database() AND pg_roles.rolname = session_user
""")

# Whoever was started last is of the version that is meant.
WORKERS = Statement("""
SELECT version, count(*)::int AS number, (array_agg(id::text ORDER BY granted_at))[1:10] AS leases
FROM fleet.lease
WHERE state = 'LIVE' AND expires_at > clock_timestamp()
GROUP BY version
ORDER BY max(granted_at) DESC
LIMIT 100
""")

# A lease that has just expired waits for a reaper's own look at it, which takes a TTL.
LEASES = Statement("""
SELECT count(*) FILTER (WHERE expires_at <= clock_timestamp()) AS overdue,
  count(*) FILTER (WHERE expires_at <= clock_timestamp() - 2 * ttl) AS forgotten,
  count(*) FILTER (WHERE expires_at > clock_timestamp()) AS good,
  coalesce(extract(epoch FROM max(clock_timestamp() - expires_at)), 0)::float8 AS longest_seconds
FROM fleet.lease
WHERE state IN ('LIVE', 'DRAINING')
""")

DEAD_LETTERS = Statement("""
SELECT count(*)
FROM (
  SELECT FROM fleet.task
  WHERE state = 'FAILED' AND resolved_at IS NULL
  LIMIT :count_max::int + 1
) AS dead
""")

# Names are found one by one along the index, and what is due by one look into each priority.
QUEUES = Statement("""
WITH RECURSIVE waiting AS (
  SELECT min(queue) AS name
  FROM fleet.task
  WHERE state = 'QUEUED'
  UNION ALL
  SELECT (SELECT min(task.queue) FROM fleet.task WHERE task.state = 'QUEUED' AND task.queue > waiting.name)
  FROM waiting
  WHERE waiting.name IS NOT NULL
), due AS (
  SELECT waiting.name
  FROM waiting
  WHERE EXISTS (
    SELECT FROM generate_series(0, 9) AS given (priority)
    WHERE EXISTS (
      SELECT FROM fleet.task
      WHERE task.state = 'QUEUED' AND task.queue = waiting.name AND task.priority = given.priority
        AND task.run_at <= clock_timestamp()
    )
  )
)
SELECT due.name,
  coalesce(queue.paused, false) AS paused,
  EXISTS (
    SELECT FROM fleet.lease
    WHERE lease.state = 'LIVE' AND lease.expires_at > clock_timestamp() AND due.name = ANY (lease.queues)
  ) AS served
FROM due
LEFT JOIN fleet.queue ON queue.name = due.name
LIMIT :count_max::int
""")


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One question for the time: when it was sent and answered by the clock here, and what the server's clock said."""

    sent: float
    answered: float
    there: float

    @property
    def seconds(self) -> float:
        return self.answered - self.sent


@dataclass(frozen=True, slots=True)
class Site:
    """An open session on the database under examination."""

    database: Database
    connection: Connection
    role: str  # whose rights count
    round_trips: list[RoundTrip]


@dataclass(frozen=True, slots=True)
class Server:
    version: str
    number: int
    in_recovery: bool


@dataclass(frozen=True, slots=True)
class Encryption:
    """How this session gets to whoever answers: a pooler, perhaps. `sslmode` says what is asked of its certificate."""

    address: str
    encrypted: bool
    sslmode: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a session, where it was made, and whose session it is."""

    name: str
    value: str
    source: str
    database: str
    role: str


@dataclass(frozen=True, slots=True)
class Isolation:
    """What our sessions have, which ask for it, and what everybody else's have."""

    ours: Setting
    theirs: Setting


@dataclass(frozen=True, slots=True)
class Standbys:
    """Standbys that stream now, which of them are waited for, and the names of those that should be. `shown`: to us."""

    awaited: str
    number: int
    synchronous: int
    shown: bool


@dataclass(frozen=True, slots=True)
class Session:
    role: str
    asked: dict[str, str]
    found: dict[str, str]


@dataclass(frozen=True, slots=True)
class Connections:
    """Limits (-1: none) and what is in use of each."""

    database: str
    role: str
    server_max: int
    server_used: int
    database_max: int
    database_used: int
    role_max: int
    role_used: int
    workers: int

    @property
    def least(self) -> tuple[str, int, int]:
        """The limit that leaves the least: whose it is, how much it allows, how much is free."""
        limits = [
            ("server", self.server_max, self.server_used),
            ("database", self.database_max, self.database_used),
            ("role", self.role_max, self.role_used),
        ]
        return min(((whose, most, most - used) for whose, most, used in limits if most >= 0), key=lambda each: each[2])


@dataclass(frozen=True, slots=True)
class Workers:
    """The live workers of one version; `leases` are the ids of some of them, the oldest first."""

    version: str
    number: int
    leases: list[str]


@dataclass(frozen=True, slots=True)
class Leases:
    overdue: int
    forgotten: int
    good: int
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class WaitingQueue:
    """A queue in which a task is due."""

    name: str
    paused: bool
    served: bool


@contextmanager
def visit(database: Database, clock: Callable[[], float] = time.time) -> Iterator[Site]:
    """Open a session, on a standby too, and time some round trips. Raises psycopg.OperationalError."""
    with _connect(database) as connection:
        row = connection.execute("SELECT current_user::text").fetchone()
        round_trips = [_round_trip(connection, clock) for _ in range(ROUND_TRIPS)]
        yield Site(database, connection, str(row[0]) if row else "", round_trips)


def server(site: Site) -> Server:
    return rows_of(site.connection, SERVER, Server)[0]


def settings(connection: Connection, *names: str) -> list[Setting]:
    """Return settings by name, in alphabetic order."""
    return rows_of(connection, SETTINGS, Setting, names=[name.lower() for name in names])


def standbys(site: Site) -> Standbys:
    return rows_of(site.connection, STANDBYS, Standbys)[0]


def unlogged(site: Site) -> list[str]:
    """Return the names of the fleet's tables that a crash of the server would empty."""
    return [str(row[0]) for row in site.connection.execute(UNLOGGED.native).fetchall()]


def isolation(site: Site) -> Isolation:
    name = "default_transaction_isolation"
    with _connect(site.database, asking=False) as plain:
        return Isolation(settings(site.connection, name)[0], settings(plain, name)[0])


def session(site: Site) -> Session:
    """Return what our session has asked for, and what it has."""
    asked = {name.lower(): value for name, value in site.database.session().items() if name != "tcp_user_timeout"}
    found = settings(site.connection, *asked)
    return Session(found[0].role, asked, {each.name.lower(): each.value for each in found})


def limits(site: Site, *names: str) -> list[Setting]:
    """Return settings as sessions have them that ask for no time-outs."""
    with _connect(site.database, bounded=False) as unbounded:
        return settings(unbounded, *names)


def notification(site: Site) -> float | None:
    """Return the seconds that a notification took from a session to one that listens; None where it did not come."""
    channel = f"fleet_doctor_{uuid4().hex}"
    with _connect(site.database.listening) as listening, _connect(site.database) as other:
        listening.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        begin = time.monotonic()
        other.execute("SELECT pg_notify(%s, '')", (channel,))
        for _ in listening.notifies(timeout=NOTIFICATION_SECONDS, stop_after=1):
            return time.monotonic() - begin
    return None


def encryption(site: Site) -> Encryption:
    """Return what the driver knows: the server would tell of the way from a pooler to it."""
    connection = site.connection
    asked = {option.keyword.decode(): (option.val or b"").decode() for option in connection.pgconn.info}
    address = connection.info.hostaddr or connection.info.host
    return Encryption(address, bool(connection.pgconn.ssl_in_use), asked.get("sslmode", ""))


def connections(site: Site) -> Connections:
    return rows_of(site.connection, CONNECTIONS, Connections)[0]


def workers(site: Site) -> list[Workers]:
    """Return the versions of live workers, first the one that was started last."""
    return rows_of(site.connection, WORKERS, Workers)


def leases(site: Site) -> Leases:
    return rows_of(site.connection, LEASES, Leases)[0]


def dead_letters(site: Site) -> int:
    """Count dead letters, up to COUNT_MAX and one."""
    row = site.connection.execute(DEAD_LETTERS.native, {"count_max": COUNT_MAX}).fetchone()
    return int(row[0]) if row else 0


def queues(site: Site) -> list[WaitingQueue]:
    return rows_of(site.connection, QUEUES, WaitingQueue, count_max=COUNT_MAX)


def _connect(database: Database, *, bounded: bool = True, asking: bool = True) -> Connection:
    conninfo = make_conninfo(database.conninfo("doctor", bounded=bounded, asking=asking), target_session_attrs="any")
    # Without prepared statements: a pooler that does not know them is no reason to find nothing else.
    return Connection.connect(conninfo, autocommit=True, prepare_threshold=None)


def _round_trip(connection: Connection, clock: Callable[[], float]) -> RoundTrip:
    sent = clock()
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    return RoundTrip(sent, clock(), row[0] if row else 0.0)
