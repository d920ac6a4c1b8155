"""The database comes back without its last commits, as after a failover to an asynchronous standby: nothing stays stuck."""

from uuid import UUID

import pytest

from fleet import Fleet
from fleet.events import DatabaseTrouble, LeaseRenewed, TasksReconciled
from fleet.lease import Lease
from fleet.postgres.database import AsyncConnection
from fleet.task import State
from fleet.worker import claimer
from tests.support import history, row
from tests.worker.steps import Recorder, in_state, lease_of


async def forget_the_end(connection: AsyncConnection, task: UUID, lease: Lease) -> None:
    """Make a finished task what it was before: at work under this lease."""
    forgotten = await connection.execute(
        "UPDATE fleet.task SET state = 'RUNNING', lease_id = %s, finished_at = NULL, result = NULL"
        " WHERE id = %s AND state = 'SUCCEEDED'",
        (lease.id, task),
    )
    assert forgotten.rowcount == 1


async def break_connections(connection: AsyncConnection) -> None:
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name IN ('fleet claim', 'fleet settle', 'fleet heartbeat')"
    )


async def test_a_repeatable_task_whose_end_was_forgotten_runs_again(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    ran = []

    @app.task(idempotent=True)
    async def work() -> None:
        ran.append(1)

    async with app.worker(events=recorder.events) as worker:
        ref = await work.submit()
        await in_state(ref, State.SUCCEEDED)
        await forget_the_end(connection, ref.id, lease_of(worker))
        await break_connections(connection)
        await recorder.seen(DatabaseTrouble)
        await in_state(ref, State.SUCCEEDED)
    assert ran == [1, 1]
    assert await history(connection, ref.id) == [(1, False, "released")]


async def test_a_task_that_must_not_be_repeated_and_whose_end_was_forgotten_is_left_to_a_person(
    app: Fleet, recorder: Recorder, connection: AsyncConnection
) -> None:
    ran = []

    @app.task
    async def work() -> None:
        ran.append(1)

    async with app.worker(events=recorder.events) as worker:
        ref = await work.submit()
        await in_state(ref, State.SUCCEEDED)
        await forget_the_end(connection, ref.id, lease_of(worker))
        await break_connections(connection)
        await in_state(ref, State.FAILED)
    assert ran == [1]
    stored = await row(connection, ref.id)
    assert stored["failure_code"] == "interrupted"
    assert "the database has forgotten how" in stored["failure_reason"]


async def test_what_was_forgotten_is_found_even_where_no_connection_broke(
    app: Fleet, recorder: Recorder, connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler between us and the servers keeps our connections over a failover."""
    monkeypatch.setattr(claimer, "LOOK_EVERY", 0.1)
    ran = []

    @app.task(idempotent=True)
    async def work() -> None:
        ran.append(1)

    async with app.worker(events=recorder.events) as worker:
        ref = await work.submit()
        await in_state(ref, State.SUCCEEDED)
        await recorder.next(LeaseRenewed)
        await forget_the_end(connection, ref.id, lease_of(worker))
        await recorder.seen(TasksReconciled)
        await in_state(ref, State.SUCCEEDED)
    assert ran == [1, 1]
    assert recorder.of(DatabaseTrouble) == []
