"""Connections: how they are opened, what every session is set to, and how a statement is run on one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus
from psycopg.rows import class_row
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from fleet.config import Settings
from fleet.errors import ConfigurationError, DatabaseBusy, DatabaseFull, DatabaseUnreachable, OutcomeUnknown, first_line
from fleet.postgres.patience import Patience

Row = tuple[Any, ...]
T = TypeVar("T")

# connection exceptions, refused log-ins, no such database, too many connections, shutting down or starting up
_NO_CONNECTION = ("08", "28", "3D", "53300", "57P")
# a lock, a statement, a transaction took too long; a deadlock, somebody else's turn
_BUSY = {"55P03", "57014", "25P03", "25P04", "40P01", "40001"}
_FULL = {"53100": "disk", "53200": "memory"}
# The roles that run a few statements again and again, and what keeps their plans: made once, and only from indexes, so
# that no statistics, neither wrong nor old ones, can make one that a grown table turns into a disaster.
_HOT = ("claim", "scout", "settle", "heartbeat", "maintenance", "prune", "client", "metrics")
_PLANNED_ONCE = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",  # where an index has the order, that index is meant; elsewhere there is no other way, and it sorts
}
# What libpq says where an encrypted connection was wanted, and either side did not get what it asked for.
_UNTRUSTED = ("certificate", "unknown ca", "does not support SSL", "no encryption")
_UNREADABLE = (
    "the database URL cannot be read (it is not shown, because it may hold a password): write "
    "postgresql://user@host:5432/database, and after the user's name a colon and the password, with @ : / % in it as "
    "%40 %3A %2F %25"
)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


class Statement:
    """SQL with `:named` parameters, as psql and SQLAlchemy read it; `native` is the same text for psycopg."""

    __slots__ = ("native", "text")

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self.native = _PARAMETER.sub(r"%(\1)s", self.text.replace("%", "%%")).encode()


class AsyncConnection(psycopg.AsyncConnection[Row]):
    """A session of one role, used by one task at a time.

    Its statements share one cursor: a new one learns anew how to write each type, a tenth of a submission's time.
    """

    patience_seconds: float | None = None  #: an answer that takes longer does not come any more

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.statements = self.cursor(binary=True)

    def patience(self) -> Patience:
        """Return a block in which an answer is awaited: where none comes, the connection is shut, as if it broke.

        Whatever stands between, and acknowledges for a server that does not hear us, would keep us waiting for ever.
        """
        return Patience(self, self.patience_seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it in any case: psycopg's own method leaves it open where it is cancelled as it rolls back."""
        try:
            await super().__aexit__(kind, error, traceback)
        finally:
            if getattr(self, "_pool", None) is None:
                await self.close()


class Connection(psycopg.Connection[Row]):
    """The same, synchronous."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.statements = self.cursor(binary=True)


async def run(connection: AsyncConnection, statement: Statement, **parameters: Any) -> list[Row]:
    """Run one statement and return its rows, in binary format; none for a statement without RETURNING."""
    cursor = connection.statements
    with connection.patience():
        await cursor.execute(statement.native, parameters, prepare=True)
    return await cursor.fetchall() if _has_rows(cursor) else []


def run_sync(connection: Connection, statement: Statement, **parameters: Any) -> list[Row]:
    """The same on a synchronous connection."""
    cursor = connection.statements
    cursor.execute(statement.native, parameters, prepare=True)
    return cursor.fetchall() if _has_rows(cursor) else []


def _has_rows(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> bool:
    """Tell whether the statement answers rows, were it none. `description` would say so, but builds all columns."""
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


def rows_of(connection: Connection, statement: Statement, kind: type[T], **parameters: Any) -> list[T]:
    """Run one statement and return its rows, each as a value of `kind`, whose fields are the columns."""
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(statement.native, parameters).fetchall()


def array(values: Iterable[object]) -> str:
    """Return numbers or moments as an array literal: a third of the time that the driver takes for a list of them."""
    return "{" + ",".join(map(str, values)) + "}"


def id_array(ids: Iterable[UUID]) -> str:
    """Return ids as an array literal, without the hyphens, which take half of the time."""
    return "{" + ",".join([f"{id_.int:032x}" for id_ in ids]) + "}"


def text_array(values: Iterable[str]) -> str:
    """Return texts as an array literal."""
    return "{" + ",".join(['"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values]) + "}"


def identifier(name: str) -> str:
    """Return the name of a role, a table or the like as SQL writes it."""
    return sql.Identifier(name).as_string()


class Database:
    """Where the fleet's tables are, and how sessions on them behave."""

    def __init__(self, url: str, settings: Settings, *, listen_url: str | None = None) -> None:
        """`listen_url`: another way to the same database, for LISTEN alone: past a pooler that drops notifications."""
        self.settings = settings
        self._listening = None if listen_url is None else Database(listen_url, settings)
        try:
            self._given = conninfo_to_dict(re.sub(r"^postgres(ql)?\+\w+://", "postgresql://", url))
        except psycopg.ProgrammingError:
            # libpq's own words quote the part that it stumbled over, which may be half of a password
            raise ConfigurationError(_UNREADABLE) from None
        if _is_misread(self._given):
            raise ConfigurationError(_UNREADABLE)

    @property
    def listening(self) -> "Database":
        """The same database, as sessions that listen reach it."""
        return self._listening or self

    @property
    def address(self) -> str:
        """Where it is, fit to be shown: never with the password."""
        shown = {
            name: value for name, value in self._given.items() if name in ("host", "hostaddr", "port", "dbname", "user")
        }
        return make_conninfo("", **shown) or "the database that PG* variables name"

    def session(self, *, bounded: bool = True) -> dict[str, str]:
        """Return what a session asks for when it starts, as PostgreSQL shows it. `bounded`: with the time-outs."""
        settings = self.settings
        session = {
            "default_transaction_isolation": "read committed",
            "plan_cache_mode": "force_custom_plan",
            "jit": "off",
            "timezone": "UTC",
            "tcp_user_timeout": _milliseconds(settings.ttl.total_seconds() / 2),
        }
        if bounded:
            session |= {
                "statement_timeout": _milliseconds(settings.statement_timeout.total_seconds()),
                "lock_timeout": _milliseconds(settings.lock_timeout.total_seconds()),
                "idle_in_transaction_session_timeout": _milliseconds(settings.ttl.total_seconds() / 2),
            }
        return session

    def conninfo(self, role: str, *, bounded: bool = True, asking: bool = True) -> str:
        """Return libpq's connection string. `asking`: the session is as `session` says, else as everybody's."""
        settings = self.settings
        session = self.session(bounded=bounded) if asking else {}
        if asking and role in _HOT:
            session |= _PLANNED_ONCE
        options = " ".join(f"-c {name}={value}" for name, value in session.items()).replace("read c", "read\\ c")
        ours: dict[str, str | int | None] = {
            "application_name": f"fleet {role}",
            "client_encoding": "UTF8",
            "connect_timeout": max(2, round(settings.ttl.total_seconds() / 6)),
            "keepalives_idle": max(1, round(settings.ttl.total_seconds() / 3)),
            "keepalives_interval": max(1, round(settings.ttl.total_seconds() / 10)),
            "keepalives_count": 3,
            "tcp_user_timeout": int(_milliseconds(settings.ttl.total_seconds() / 2)),
            "target_session_attrs": "read-write",
        }
        given = {name: str(value) for name, value in self._given.items() if value is not None}
        return make_conninfo("", **(ours | given | {"options": f"{given.get('options', '')} {options}".strip()}))

    @property
    def options(self) -> dict[str, Any]:
        """What the driver is told of every connection in autocommit. Without a threshold nothing is ever prepared."""
        return {"autocommit": True} | ({} if self.settings.prepared_statements else {"prepare_threshold": None})

    async def connect(self, role: str) -> AsyncConnection:
        """Open a session for one role of a worker, in autocommit. Raises psycopg.OperationalError."""
        connection = await AsyncConnection.connect(self.conninfo(role), **self.options)
        await self.teach(connection)
        return connection

    async def teach(self, connection: AsyncConnection) -> None:
        """Tell a connection how long an answer may take: the server itself ends a statement sooner."""
        connection.patience_seconds = 2 * self.settings.statement_timeout.total_seconds()

    def connect_sync(self, role: str) -> Connection:
        """The same, synchronous."""
        return Connection.connect(self.conninfo(role), **self.options)

    def engine(self, role: str, *, bounded: bool = True) -> Engine:
        """Return an SQLAlchemy engine that opens a connection for each use: for questions and migrations."""
        conninfo = self.conninfo(role, bounded=bounded)
        options = self.options | {"autocommit": False}
        return create_engine(
            "postgresql+psycopg://",
            creator=lambda: psycopg.connect(conninfo, **options),
            poolclass=NullPool,
            hide_parameters=True,  # an error's text would show them
        )

    def async_engine(self, role: str, *, size: int) -> AsyncEngine:
        """Return an SQLAlchemy engine with a pool of at most so many connections in autocommit: for many questions."""
        conninfo = self.conninfo(role)
        return create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: psycopg.AsyncConnection.connect(conninfo, **self.options),
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
            pool_size=size,
            max_overflow=0,
            pool_timeout=self.settings.statement_timeout.total_seconds(),
            pool_pre_ping=True,  # a connection that the server has closed meanwhile is replaced, not handed out
        )

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Turn 'no connection' into DatabaseUnreachable, with the address and what to do next. Other errors pass."""
        try:
            yield
        except psycopg.OperationalError as error:
            if not _is_lost(error):
                raise
            raise DatabaseUnreachable(
                f"{self.address} cannot be reached: {first_line(error)}. {what_to_check(error)}"
            ) from error


@contextmanager
def answered(*, writing: bool = True) -> Iterator[None]:
    """Turn 'the connection was lost while the statement was under way' into OutcomeUnknown: never into a failure.

    And 'the disk is full' into DatabaseFull, 'it took too long' into DatabaseBusy: the server says that it is not done.
    Of a mere question nothing can be unknown: then the loss is left to `Database.reachable`.
    """
    try:
        yield
    except psycopg.Error as error:
        if (full := full_of(error)) is not None:
            raise DatabaseFull(full) from error
        if error.sqlstate in _BUSY:
            words = f"the database did not get to it in time: {first_line(error)}. Nothing was written: try again"
            raise DatabaseBusy(words) from error
        if not (writing and isinstance(error, psycopg.OperationalError) and _is_lost(error)):
            raise
        raise OutcomeUnknown(
            f"the connection was lost before the answer: {first_line(error)}. Whether it was done is not known: "
            "ask for the task, or submit again with the same idempotency key"
        ) from error


def full_of(error: psycopg.Error) -> str | None:
    """Say what the server is out of; None where it is not out of anything."""
    what = _FULL.get(error.sqlstate or "")
    if what is None:
        return None
    return (
        f"the {what} of the database's server is full: {first_line(error)}. "
        "Nothing was written: make room there, and try again."
    )


def what_to_check(error: psycopg.OperationalError) -> str:
    """Say where to look where no connection could be made."""
    if any(words in str(error) for words in _UNTRUSTED):
        return "Check sslmode and sslrootcert in the database's URL, and the certificate of the server."
    return "Check the address (--database-url, FLEET_DATABASE_URL) and that the server is up."


def _is_misread(parts: Mapping[str, object]) -> bool:
    """Tell whether a password with a bare @ or / was cut in two: its rest would be shown as the name of a host."""
    host, port = str(parts.get("host") or ""), str(parts.get("port") or "")
    return "@" in host[1:] or not all(number.isdigit() for number in port.split(",") if number)


def _is_lost(error: psycopg.OperationalError) -> bool:
    return error.sqlstate is None or error.sqlstate.startswith(_NO_CONNECTION)


def is_data_error(error: psycopg.Error) -> bool:
    """Tell whether a statement was refused for what it carried, by the server or by the driver: a repeat is in vain."""
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
        return True
    return bool(error.sqlstate) and str(error.sqlstate)[:2] in ("22", "23")


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
