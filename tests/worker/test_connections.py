"""Sessions that the database ends, one role at a time: the work goes on, and each task still ends once."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from fleet import Fleet, Settings
from fleet.errors import DatabaseUnreachable
from fleet.events import DatabaseTrouble, LeaseRenewed, LeasesReaped, TasksClaimed, TaskSettled
from fleet.lease import Lease
from fleet.postgres import heartbeat
from fleet.postgres.database import AsyncConnection, Connection, Database
from fleet.task import State
from fleet.worker.maintenance import Maintenance
from tests.support import eventually, expire_lease, new_lease
from tests.worker.steps import Gate, Recorder, ThreadGate, in_state, lease_of, lease_state, outage, terminate, until

TASKS = 300


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, backoff_base=timedelta(milliseconds=1))


@pytest.mark.parametrize("role", ["claim", "settle", "listen", "maintenance", "heartbeat"])
async def test_under_load_each_task_ends_right_and_once_although_sessions_are_killed(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, role: str
) -> None:
    ran: Counter[int] = Counter()

    @app.task
    async def work(number: int) -> int:
        ran[number] += 1
        return number

    refs = await app.submit_many(work, [{"number": number} for number in range(TASKS)])
    async with app.worker(events=recorder.events):
        for settled in range(30, TASKS, 60):
            await recorder.seen(TaskSettled, settled)
            await terminate(connection, role)
        assert [await ref.result(10) for ref in refs] == list(range(TASKS))
    assert ran == Counter(range(TASKS))
    cursor = await connection.execute("SELECT count(*) FROM fleet.task WHERE failures + losses > 0")
    assert await cursor.fetchall() == [(0,)]


async def test_the_heartbeat_connects_again(app: Fleet, recorder: Recorder, connection: AsyncConnection) -> None:
    @app.task
    async def work() -> None: ...

    async with app.worker(events=recorder.events) as worker:
        lease = lease_of(worker)
        for killed in range(1, 4):
            await eventually(lambda: terminate(connection, "heartbeat"))
            await recorder.seen(DatabaseTrouble, killed)
            await recorder.next(LeaseRenewed)
        assert lease_of(worker) is lease
        assert {event.operation for event in recorder.of(DatabaseTrouble)} == {"renew"}


async def test_a_heartbeat_outlives_an_error_that_nobody_expected(
    app: Fleet, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, raised = heartbeat.renew, list[int]()

    def renew(connection: Connection, lease: Lease) -> heartbeat.Renewed | None:
        if not raised:
            raised.append(1)
            raise RuntimeError("nobody expected this")
        return original(connection, lease)

    @app.task
    async def work() -> None: ...

    monkeypatch.setattr(heartbeat, "renew", renew)
    async with app.worker(events=recorder.events):
        await recorder.seen(LeaseRenewed)
        assert "nobody expected this" in recorder.of(DatabaseTrouble)[0].error


async def test_an_outage_costs_nobody_a_task(
    app: Fleet, recorder: Recorder, server_url: str, database_url: str
) -> None:
    gate, rest = Gate(), ThreadGate()

    @app.task
    async def charge() -> str:
        await gate.enter()
        return "paid"

    @app.task
    def call() -> str:
        rest.enter()
        return "called"

    async with app.worker(events=recorder.events) as worker:
        refs = [await charge.submit(), await call.submit()]
        await gate.waiting()
        await rest.waiting()
        lease = lease_of(worker)
        async with outage(server_url, database_url):
            gate.open()
            rest.open()
            await until(lambda: {"renew", "settle"} <= {event.operation for event in recorder.of(DatabaseTrouble)})
        await app.close()  # its pool is full of dead sessions
        assert [await ref.result(10) for ref in refs] == ["paid", "called"]
        assert lease_of(worker) is lease
    assert len(gate.entered + rest.entered) == 2


async def test_a_worker_that_cannot_reach_the_database_does_not_start_and_closes_what_it_opened(
    database_url: str, settings: Settings
) -> None:
    opened = []
    async with Fleet(f"{database_url}_missing", settings=settings) as app:

        @app.task
        async def work() -> None: ...

        @app.lifespan
        async def resources() -> AsyncIterator[None]:
            opened.append("open")
            try:
                yield
            finally:
                opened.append("closed")

        with pytest.raises(DatabaseUnreachable, match="cannot be reached"):
            async with app.worker():
                pass
    assert opened == ["open", "closed"]


async def test_a_dead_workers_tasks_are_settled_by_any_other_in_its_maintenance(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, database: Database
) -> None:
    dead = await new_lease(connection)
    await expire_lease(connection, dead)

    @app.task
    async def work() -> None: ...

    async with app.worker(events=recorder.events) as worker:
        assert (await recorder.seen(LeasesReaped)).lease_ids == (dead.id,)
        assert await lease_state(connection, dead) == "REAPED"
        assert await lease_state(connection, lease_of(worker)) == "LIVE"


async def test_maintenance_connects_again(
    database: Database, settings: Settings, recorder: Recorder, connection: AsyncConnection
) -> None:
    lease = await new_lease(connection)
    maintenance = Maintenance(database, settings, recorder.events, me=lambda: lease.id, reclaimed=lambda: None)
    await maintenance.step()
    assert await terminate(connection, "maintenance") == 1
    with pytest.raises(psycopg.OperationalError):
        await maintenance.step()
    await maintenance.step()
    await maintenance.close()


@pytest.mark.fault("Database", "one backend is killed")
async def test_a_worker_keeps_claiming_after_each_of_its_sessions_was_killed(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    @app.task
    async def work(number: int) -> int:
        return number

    async with app.worker(events=recorder.events):
        for number, role in enumerate(("listen", "claim", "settle", "maintenance", "heartbeat")):
            await terminate(connection, role)
            ref = await work.submit(number)
            await in_state(ref, State.SUCCEEDED)
    assert sum(event.count for event in recorder.of(TasksClaimed)) == 5
