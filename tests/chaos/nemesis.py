"""Does what the plan says to the house, and writes down what it has really done."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg

from fleet.postgres.tables import metadata
from fleet.testing.proxy import Proxy
from tests.chaos.clients import Operator
from tests.chaos.house import House, Worker
from tests.chaos.plan import DRAIN_SECONDS, TTL_SECONDS, Planned

CUT_SECONDS = 4.0  # so long a cut waits for its statement to come by

# Words by which a statement is known when it crosses.
STATEMENTS = {
    "claim": "WITH holder AS",
    "succeed": "SET state = 'SUCCEEDED'",
    "give back": "put_back AS",
    "renew": r"UPDATE fleet\.lease\s+SET (?!idle|state)",
    "mark": "marked AS",
    "reclaim": "attempt_seen",
    "late report": "late AS",
    "cancel": "cancel_request",
}
SUBMISSION = r"INSERT INTO fleet\.(task|submission)|COPY fleet\.task|COMMIT"


class Nemesis:
    """Its deeds run side by side; each takes the worker that it needs, or leaves it where all are taken."""

    def __init__(self, house: House, operator: Operator) -> None:
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self._house = house
        self._operator = operator
        self._server_is_free = asyncio.Lock()

    async def run(self, planned: list[Planned], began: float) -> None:
        """Do all of it; `began` is the monotonic moment that the plan counts from."""
        async with asyncio.TaskGroup() as group:
            for each in planned:
                await asyncio.sleep(max(0.0, began + each.at - time.monotonic()))
                await asyncio.to_thread(self._house.replace_the_dead, self._house.workers)
                group.create_task(self._do(each), name=each.fault)

    async def _do(self, planned: Planned) -> None:
        chance = random.Random(planned.dice)
        began, done = time.monotonic(), False
        at = time.time()
        try:
            done = await DEEDS[planned.fault](self, planned, chance)
        except (psycopg.Error, OSError) as error:  # the server may be down already, by another fault
            self._house.nemesis.write("missed", fault=planned.fault, error=str(error))
        (self.done if done else self.missed)[planned.fault] += 1
        if done:
            self._house.nemesis.write("healed", fault=planned.fault, began=at, seconds=time.monotonic() - began)

    @asynccontextmanager
    async def _worker(self, planned: Planned, chance: random.Random) -> AsyncIterator[Worker | None]:
        """Take a worker that lives and is let alone by the other faults."""
        free = self._house.free()
        if not free:
            yield None
            return
        worker = chance.choice(free)
        worker.busy_until = float("inf")
        self._house.nemesis.write("fault", fault=planned.fault, target=worker.name, seconds=planned.seconds)
        try:
            yield worker
        finally:
            worker.busy_until = 0.0

    async def kill(self, planned: Planned, chance: random.Random) -> bool:
        async with self._worker(planned, chance) as worker:
            if worker is None:
                return False
            killed = await asyncio.to_thread(worker.kill)
            await asyncio.sleep(planned.seconds)
            await asyncio.to_thread(worker.start)
            return killed

    async def pause(self, planned: Planned, chance: random.Random) -> bool:
        async with self._worker(planned, chance) as worker:
            if worker is None:
                return False
            await asyncio.to_thread(worker.pause)
            began = time.monotonic()
            await asyncio.sleep(planned.seconds)
            stood = time.monotonic() - began
            worker.resume()
            return worker.lives and (stood > TTL_SECONDS or "past" not in planned.fault)

    async def drain(self, planned: Planned, chance: random.Random) -> bool:
        async with self._worker(planned, chance) as worker:
            if worker is None:
                return False
            worker.signal(signal.SIGTERM)
            code = await asyncio.to_thread(worker.wait, DRAIN_SECONDS)
            self._house.nemesis.write("drained", target=worker.name, code=code)
            await asyncio.sleep(planned.seconds)
            await asyncio.to_thread(worker.start)
            return code == 0

    async def poison(self, planned: Planned, chance: random.Random) -> bool:
        return await self._operator.submit_poison() is not None

    async def swizzle(self, planned: Planned, chance: random.Random) -> bool:
        """Stop some links one after the other, and let them go again in another order."""
        free = self._house.free()
        if len(free) < 2:
            return False
        chosen = chance.sample(free, chance.randint(2, len(free)))
        for worker in chosen:
            worker.busy_until = float("inf")
        pause = planned.seconds / (2 * len(chosen))
        try:
            for worker in chosen:
                self._house.nemesis.write("fault", fault="swizzle", target=worker.name, seconds=planned.seconds)
                worker.proxy.freeze("both")
                await asyncio.sleep(pause)
        finally:
            for worker in chance.sample(chosen, len(chosen)):
                await asyncio.sleep(pause)
                worker.proxy.heal()
                worker.busy_until = 0.0
        return True

    async def cut(self, planned: Planned, chance: random.Random) -> bool:
        when = "after" if planned.fault.endswith("after") else "before"
        async with self._worker(planned, chance) as worker:
            if worker is None:
                return False
            statement = chance.choice(list(STATEMENTS))
            return await self._cut(worker.proxy, STATEMENTS[statement], when)

    async def cut_submission(self, planned: Planned, chance: random.Random) -> bool:
        self._house.nemesis.write("fault", fault=planned.fault, target="clients", seconds=0)
        return await self._cut(self._house.clients, SUBMISSION, "after")

    async def _cut(self, proxy: Proxy, pattern: str, when: Any) -> bool:
        cut = proxy.cut(pattern, when=when)
        with suppress(TimeoutError):
            await cut.cut(CUT_SECONDS)
        proxy.heal()  # a cut that nothing came by is taken back
        return cut.happened > 0

    async def reset_clients(self, planned: Planned, chance: random.Random) -> bool:
        self._house.nemesis.write("fault", fault=planned.fault, target="clients", seconds=0)
        self._house.clients.reset()
        return True

    async def crash(self, planned: Planned, chance: random.Random) -> bool:
        """The server ends without a word to anybody, and recovers from its log."""
        async with self._server_is_free:
            began = time.time()
            self._house.nemesis.write("fault", fault="crash", target="server", seconds=planned.seconds)
            await asyncio.to_thread(self._house.server.stop_immediately)
            await asyncio.sleep(planned.seconds)
            await asyncio.to_thread(self._house.server.start)
            self._house.nemesis.write(
                "restarted", fault="crash", target="server", began=began, seconds=time.time() - began
            )
            return True

    async def end_sessions(self, planned: Planned, chance: random.Random) -> bool:
        self._house.nemesis.write("fault", fault=planned.fault, target="server", seconds=0)
        return await asyncio.to_thread(self._end_sessions) > 0

    def _end_sessions(self) -> int:
        with self._house.connect() as connection:
            found = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'fleet %'"
            ).fetchone()
            return int(found[0]) if found else 0

    async def lock_table(self, planned: Planned, chance: random.Random) -> bool:
        table = chance.choice(sorted(metadata.tables))
        return await self._hold(planned, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")

    async def hold_rows(self, planned: Planned, chance: random.Random) -> bool:
        return await self._hold(
            planned, "SELECT FROM fleet.task WHERE state = 'RUNNING' LIMIT 10 FOR UPDATE SKIP LOCKED"
        )

    async def _hold(self, planned: Planned, statement: str) -> bool:
        async with self._server_is_free:  # not while it is down
            connection = await psycopg.AsyncConnection.connect(self._house.url, connect_timeout=2)
            try:
                self._house.nemesis.write("fault", fault=planned.fault, target="server", seconds=planned.seconds)
                await connection.execute("SET lock_timeout = '5s'")
                await connection.execute(statement.encode())
                await asyncio.sleep(planned.seconds)
                return True
            finally:
                await connection.close()


Deed = Callable[[Nemesis, Planned, random.Random], Awaitable[bool]]

DEEDS: dict[str, Deed] = {
    "kill": Nemesis.kill,
    "pause past the TTL": Nemesis.pause,
    "pause": Nemesis.pause,
    "drain": Nemesis.drain,
    "exit in a handler": Nemesis.poison,
    "swizzle": Nemesis.swizzle,
    "cut before": Nemesis.cut,
    "cut after": Nemesis.cut,
    "cut a submission": Nemesis.cut_submission,
    "reset the clients": Nemesis.reset_clients,
    "crash": Nemesis.crash,
    "end all sessions": Nemesis.end_sessions,
    "lock a table": Nemesis.lock_table,
    "hold rows": Nemesis.hold_rows,
}


def _link(effect: Callable[[Proxy], None]) -> Deed:
    """Make a deed of what is done to a worker's connections."""

    async def deed(self: Nemesis, planned: Planned, chance: random.Random) -> bool:
        async with self._worker(planned, chance) as worker:
            if worker is None:
                return False
            effect(worker.proxy)
            await asyncio.sleep(planned.seconds)
            worker.proxy.heal()
            return True

    return deed


DEEDS |= {
    "partition": _link(lambda proxy: proxy.freeze("both")),
    "freeze to the server": _link(lambda proxy: proxy.freeze("to_server")),
    "freeze to the client": _link(lambda proxy: proxy.freeze("to_client")),
    "half-open": _link(lambda proxy: proxy.half_open()),
    "delay": _link(lambda proxy: proxy.delay(0.15)),
    "throttle": _link(lambda proxy: proxy.throttle(20_000)),
    "reset": _link(lambda proxy: proxy.reset()),
    "refuse": _link(lambda proxy: proxy.refuse()),
}
