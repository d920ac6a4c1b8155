"""One run from its beginning to its verdict."""

import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from fleet.postgres.database import AsyncConnection
from fleet.verify import verify
from fleet.verify.dump import dump_sync
from tests.chaos import picture
from tests.chaos.clients import Client, Operator
from tests.chaos.house import SETTINGS, House, Worker, house
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import DRAIN_SECONDS, TTL_SECONDS, plan
from tests.chaos.result import Result
from tests.processes.crew import until, value
from tests.support import eventually

CLIENTS = 3
CORE = 2  # so many workers are healed in the end
TELL_SECONDS = 15.0
TEND_SECONDS = 0.5
THREADS = 64  # each fault that is at work may wait in one
# Everything is terminal so long after the faults at the latest: a lease of the dead runs out, its tasks are put back
# with their back-off, and the core works off what has piled up. Poison that is left ends each worker of the core a few
# times more, and a machine with too much to do takes long to start the next.
LIMIT_SECONDS = 2 * TTL_SECONDS + 2.4 * TTL_SECONDS / 6 + 300
OPEN = "SELECT count(*) FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING') AND name <> 'nobody'"
HAVE_LEASES = "SELECT count(DISTINCT pid) FROM fleet.lease WHERE state = 'LIVE' AND pid = ANY (%s)"
UNCLEARED = "SELECT count(*) FROM fleet.lease WHERE state IN ('REAPED', 'RELEASED') AND cleared_at IS NULL"


class Run:
    def __init__(self, folder: Path, seed: int, seconds: float, workers: int) -> None:
        self._folder = folder
        self._seed = seed
        self._seconds = seconds
        self._workers = workers

    async def go(self) -> Result:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        with house(self._folder, self._workers) as place:
            result = Result(self._folder, self._seed, self._seconds)
            place.hold_a_snapshot()
            operator = Operator("operator", place.url, self._folder, self._seed, SETTINGS)
            clients = [
                Client(f"client-{number}", place.clients.url, self._folder, self._seed, SETTINGS)
                for number in range(1, CLIENTS + 1)
            ]
            nemesis = Nemesis(place, operator)
            await self._break_everything(place, nemesis, [*clients, operator])
            result.done, result.missed = nemesis.done, nemesis.missed
            result.accepted = sum(len(client.accepted) for client in [*clients, operator])
            result.snapshot_seconds = await asyncio.to_thread(place.let_the_snapshot_go)
            core = await self._heal_a_core(place)
            tending = asyncio.create_task(self._tend(place, core), name="tending")
            result.settled_seconds = await self._until_terminal(place)
            await self._until_ready(place, core)
            tending.cancel()
            await operator.cancel_strangers()
            result.exits = await self._drain(core)
            async with await AsyncConnection.connect(place.url, autocommit=True) as connection:
                result.states = await states(connection)
                await asyncio.to_thread(dump_of, place, self._folder)
        result.report = await asyncio.to_thread(verify, self._folder)
        await asyncio.to_thread(picture.draw, self._folder, self._folder / "timeline.png")
        return result

    async def _break_everything(self, place: House, nemesis: Nemesis, clients: list[Client]) -> None:
        ended = asyncio.Event()
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run(ended), name="client")
            telling = group.create_task(self._tell(nemesis, clients, began))
            await nemesis.run(plan(self._seed, self._seconds), began)
            await asyncio.sleep(max(0.0, began + self._seconds - time.monotonic()))
            ended.set()
            telling.cancel()

    async def _tell(self, nemesis: Nemesis, clients: list[Client], began: float) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            accepted = sum(len(client.accepted) for client in clients)
            faults = sum(nemesis.done.values())
            print(f"  {time.monotonic() - began:4.0f} s: {accepted:,} tasks accepted, {faults} faults", flush=True)

    async def _heal_a_core(self, place: House) -> list[Worker]:
        """The first workers are made well; the others are left broken, each in a way of its own."""
        core, rest = place.workers[:CORE], place.workers[CORE:]
        for worker in core:
            worker.proxy.heal()
            worker.resume()
            if not worker.lives:
                worker.start()
        for number, worker in enumerate(rest):
            how = ("left stopped", "left cut off", "left dead")[number % 3]
            place.nemesis.write("fault", fault=how, target=worker.name, seconds=0)
            if how == "left stopped" and worker.lives:
                await asyncio.to_thread(worker.pause)
            elif how == "left cut off":
                worker.proxy.freeze("both")
            elif worker.lives:
                await asyncio.to_thread(worker.kill)
        return core

    async def _tend(self, place: House, core: list[Worker]) -> None:
        """Start those of the core again that end by themselves, as every deployment does: poison is still about."""
        while True:
            await asyncio.to_thread(place.replace_the_dead, core)
            await asyncio.sleep(TEND_SECONDS)

    async def _until_terminal(self, place: House) -> float | None:
        """Return after how many seconds all work had ended; None where it took longer than the limit."""
        began = time.monotonic()
        async with await AsyncConnection.connect(place.url, autocommit=True) as connection:
            with suppress(AssertionError):
                await until(connection, OPEN, is_=lambda count: count == 0, seconds=LIMIT_SECONDS)
                await until(connection, UNCLEARED, is_=lambda count: count == 0, seconds=LIMIT_SECONDS)
                return time.monotonic() - began
        return None

    async def _until_ready(self, place: House, core: list[Worker]) -> None:
        """Return when each worker of the core has a lease: one that has only just begun knows of no signals yet."""
        async with await AsyncConnection.connect(place.url, autocommit=True) as connection:

            async def all_have() -> bool:
                return bool(await value(connection, HAVE_LEASES, [worker.pid for worker in core]) == len(core))

            await eventually(all_have, LIMIT_SECONDS)

    async def _drain(self, core: list[Worker]) -> dict[str, int | None]:
        """Ask the workers of the core to end; return their exit codes, None for one that did not end in time."""
        for worker in core:
            worker.signal(signal.SIGTERM)

        async def ended() -> bool:
            return not any(worker.lives for worker in core)

        with suppress(AssertionError):
            await eventually(ended, DRAIN_SECONDS)
        return {worker.name: worker.ended for worker in core}


def dump_of(place: House, folder: Path) -> None:
    with place.connect() as connection:
        dump_sync(connection, folder)


async def states(connection: AsyncConnection) -> dict[str, int]:
    found = await connection.execute(
        "SELECT coalesce(failure_code, state), count(*) FROM fleet.task GROUP BY 1 ORDER BY 2 DESC"
    )
    return {row[0]: row[1] for row in await found.fetchall()}
