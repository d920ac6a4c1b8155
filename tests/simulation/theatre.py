"""One database, a few sessions and one event loop for thousands of schedules; emptied between two of them."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import uvloop
from psycopg.rows import scalar_row

from fleet.config import Settings
from fleet.lease import Lease
from fleet.postgres.database import AsyncConnection, Database
from tests.simulation.actor import Actor, Session
from tests.support import new_lease

T = TypeVar("T")
VACUUM_EVERY = 250
HEALER = "healer"

# Every change of a task or a lease, as the server made it: what is undone is not in it.
JOURNAL = """
CREATE SCHEMA simulation;
CREATE TABLE simulation.change
  (n bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(), about text, old jsonb, new jsonb, holder jsonb);
CREATE FUNCTION simulation.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO simulation.change (about, old, new, holder)
  SELECT TG_TABLE_NAME, to_jsonb(OLD), to_jsonb(NEW),
    CASE WHEN TG_TABLE_NAME = 'task' AND TG_OP = 'UPDATE' THEN
      (SELECT to_jsonb(lease) || jsonb_build_object('expired_before', expires_at <= statement_timestamp())
       FROM fleet.lease
       WHERE id = coalesce(to_jsonb(NEW) ->> 'lease_id', to_jsonb(OLD) ->> 'lease_id')::uuid) END;
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON fleet.task FOR EACH ROW EXECUTE FUNCTION simulation.note();
CREATE TRIGGER note AFTER UPDATE ON fleet.lease FOR EACH ROW EXECUTE FUNCTION simulation.note();
"""

EMPTY = f"""
DELETE FROM fleet.task; DELETE FROM fleet.attempt; DELETE FROM fleet.counter; DELETE FROM fleet.submission;
DELETE FROM fleet.cancel_request; DELETE FROM fleet.audit; DELETE FROM fleet.queue;
DELETE FROM fleet.lease WHERE worker <> '{HEALER}'; DELETE FROM simulation.change
"""

FACTS = """
SELECT jsonb_build_object(
  'changes', (SELECT coalesce(jsonb_agg(line ORDER BY n), '[]') FROM simulation.change AS line),
  'attempts', (SELECT coalesce(jsonb_agg(line), '[]') FROM fleet.attempt AS line),
  'submissions', (SELECT coalesce(jsonb_agg(line), '[]') FROM fleet.submission AS line),
  'counters', (SELECT coalesce(jsonb_agg(line), '[]') FROM fleet.counter AS line),
  'leases', (SELECT coalesce(jsonb_agg(line), '[]') FROM fleet.lease AS line),
  'tasks', (SELECT coalesce(jsonb_agg(line), '[]') FROM fleet.task AS line))
"""


class Stagehand(Database):
    """What the product's own parts connect by, when an actor is made of one: they get that actor's next session."""

    def __init__(self, theatre: "Theatre", actor: Actor) -> None:
        super().__init__(theatre.url, theatre.settings)
        self._theatre, self._actor = theatre, actor

    async def connect(self, role: str) -> AsyncConnection:
        return await self._theatre.session(self._actor)


class Theatre:
    """The house: it lends sessions, looks on, and is cleaned between the schedules."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.settings = Settings(ttl=timedelta(minutes=1))
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.schedules = 0
        self._free: list[Session] = []
        self._lent: list[Session] = []
        self.watch: AsyncConnection
        self.healer: Lease

    async def open(self) -> None:
        self.watch = await self._connect()
        await self.watch.execute(JOURNAL)
        self.healer = await new_lease(self.watch, worker=HEALER, ttl=timedelta(days=1))

    async def close(self) -> None:
        await self.empty()
        for session in (*self._free, self.watch):
            await session.close()

    async def session(self, actor: Actor) -> Session:
        """Lend a session that nobody uses; it comes back when the schedule is over."""
        session = self._free.pop() if self._free else await self._connect()
        session.actor = actor
        self._lent.append(session)
        return session

    async def empty(self) -> None:
        """Make ready for the next schedule."""
        lent, self._lent = self._lent, []
        for session in lent:
            session.actor = None
            if session.spoilt:
                await session.close()
            else:
                self._free.append(session)
        self.schedules += 1
        await self.watch.execute(EMPTY.encode())
        if self.schedules % VACUUM_EVERY == 0:
            await self.watch.execute(
                "VACUUM fleet.task, fleet.attempt, fleet.counter, fleet.submission, fleet.cancel_request, fleet.audit,"
                " fleet.queue, fleet.lease, simulation.change"
            )

    async def facts(self) -> dict[str, Any]:
        """Read everything there is, at one moment."""
        async with self.watch.cursor(row_factory=scalar_row) as cursor:
            await cursor.execute(FACTS)
            return dict(await cursor.fetchone() or {})

    async def blockers(self, pids: Sequence[int]) -> Mapping[int, Sequence[int]]:
        """Return for each session whom it waits for."""
        cursor = await self.watch.execute(
            "SELECT pid, pg_blocking_pids(pid) FROM unnest(%s::int[]) AS pid", (list(pids),)
        )
        return {row[0]: row[1] for row in await cursor.fetchall()}

    async def kill(self, pid: int) -> None:
        """End a session, and wait until it is gone with all that it held."""
        await self.watch.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    async def _connect(self) -> Session:
        """Open a session as workers have it, but for the time-outs: a slow machine must not meet one."""
        info = Database(self.url, self.settings).conninfo("claim")
        session = await Session.connect(info, autocommit=True)
        await session.execute(
            "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0"
        )
        return session
