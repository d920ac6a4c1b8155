"""Whether a pooler stands before the server, and what it does to sessions."""

from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from fleet.postgres.database import Connection, Database

TRIES = 10  # others use a pooler too: two sessions may miss each other's backend


@dataclass(frozen=True, slots=True)
class Way:
    """What lies between a client and the server.

    `pooled`: somebody else answers for the server. `shared`: two sessions were given one backend, so each transaction
    may have another. `refuses_prepared`: a statement prepared by one of them was in the other's way.
    """

    pooled: bool
    shared: bool
    refuses_prepared: bool


def way(database: Database) -> Way:
    """Open two sessions, and look at which backends they get. Waits for none: the pool may be as small as one."""
    conninfo = make_conninfo(database.conninfo("doctor"), target_session_attrs="any")
    with (
        Connection.connect(conninfo, autocommit=True, prepare_threshold=None) as first,
        Connection.connect(conninfo, autocommit=True, prepare_threshold=None) as second,
    ):
        if first.info.backend_pid == _backend(first) and second.info.backend_pid == _backend(second):
            return Way(pooled=False, shared=False, refuses_prepared=False)
        shared = any(_backend(first) == _backend(second) for _ in range(TRIES))
        return Way(True, shared, shared and any(_collide(first, second) for _ in range(TRIES)))


def _backend(connection: Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0


def _collide(first: Connection, second: Connection) -> bool:
    """Prepare two statements of one name, each session its own; a pooler that keeps them apart lets both be."""
    name = f"fleet_doctor_{uuid4().hex}"
    try:
        return any(
            each.pgconn.prepare(name.encode(), b"SELECT 1").status != ExecStatus.COMMAND_OK for each in (first, second)
        )
    finally:
        with suppress(psycopg.Error):
            first.execute(f"DEALLOCATE {name}".encode())
