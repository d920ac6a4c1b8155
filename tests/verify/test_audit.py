"""The audit of a database at work: silent on a sound one, and each kind of damage is found, with its evidence."""

from datetime import timedelta

import psycopg
import pytest
from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.postgres import audit as ask
from fleet.postgres import reap, settle
from fleet.postgres.database import AsyncConnection, Database, Statement
from fleet.task import Errored, FailureCode, Settlement
from fleet.verify import Answer
from fleet.verify.audit import audit
from tests.support import claim_some, expire_lease, new_lease, submit

# What somebody did past the product → the check that fails, and its promise. `:id` is a task that was lost once.
DAMAGE = {
    "UPDATE fleet.lease SET state = 'RELEASED' WHERE id IN (SELECT lease_id FROM fleet.task WHERE state = 'RUNNING')": (
        "tasks under ended leases", "L2",
    ),
    "DELETE FROM fleet.lease WHERE state = 'LIVE'": ("tasks without a lease", "L2"),
    "UPDATE fleet.lease SET expires_at = clock_timestamp() - 4 * ttl WHERE state = 'LIVE'": ("expired leases", "L10"),
    "UPDATE fleet.task SET run_at = run_at - interval '1 hour', queue = 'nobody' WHERE state = 'QUEUED'": (
        "queues without a worker", "S20",
    ),
    "DELETE FROM fleet.task WHERE id IN (SELECT task_id FROM fleet.submission)": ("accepted tasks", "S1"),
    "DELETE FROM fleet.counter": ("counters", "S16"),
    "DELETE FROM fleet.attempt": ("attempts", "S8"),
    "UPDATE fleet.task SET attempt = attempt + 1 WHERE state = 'RUNNING'": ("attempts", "S8"),
    "UPDATE fleet.task SET losses = losses + 2 WHERE losses > 0": ("budgets", "S6"),
    "UPDATE fleet.task SET max_losses = 1 WHERE losses > 0": ("budgets", "S6"),
    "UPDATE fleet.task SET finished_at = clock_timestamp() WHERE state = 'QUEUED'": ("states", "S10"),
    "DELETE FROM fleet.task WHERE state = 'FAILED'": ("history without tasks", "S11"),
}  # fmt: skip


async def inhabit(connection: AsyncConnection) -> None:
    """A task that waits, one that runs, one that waits for its second attempt, one that failed, and a reaped lease."""
    dead, holder = await new_lease(connection), await new_lease(connection)
    await submit(connection, name="lost")
    await claim_some(connection, dead, name="lost")
    await expire_lease(connection, dead)
    await reap.mark(connection, uuid7(), [dead.id])
    await reap.sweep(connection, reap.Sweeper(uuid7(), dead.ttl, dead.ttl), [dead.id])
    await submit(connection, name="failing")
    (failing,) = await claim_some(connection, holder, name="failing")
    await settle.give_back(connection, holder, [Settlement(failing, Errored(FailureCode.HANDLER_ERROR, "boom", None))])
    await submit(connection, name="running")
    await claim_some(connection, holder, name="running")
    await submit(connection, key="key", name="waiting")


async def test_a_sound_database_passes_every_check(connection: AsyncConnection, database: Database) -> None:
    await inhabit(connection)
    assert [(each.check, each.evidence) for each in audit(database) if each.answer is not Answer.PASS] == []


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_is_found_with_evidence_and_advice(
    connection: AsyncConnection, database: Database, damage: str
) -> None:
    await inhabit(connection)
    await connection.execute(damage.encode())
    check, code = DAMAGE[damage]
    (found,) = [each for each in audit(database) if each.check == check]
    assert (found.answer, found.code) == (Answer.FAIL, code)
    assert found.advice
    assert found.subjects
    assert found.subjects[0] in found.evidence


async def test_what_is_not_answered_in_time_is_unknown(
    connection: AsyncConnection, other: AsyncConnection, database_url: str
) -> None:
    await inhabit(connection)
    hasty = Settings(statement_timeout=timedelta(milliseconds=400), lock_timeout=timedelta(milliseconds=200))
    async with other.transaction():
        await other.execute("LOCK TABLE fleet.submission")
        answers = {each.check: each for each in audit(Database(database_url, hasty))}
    assert answers["accepted tasks"].answer is Answer.UNKNOWN
    assert "lock" in answers["accepted tasks"].evidence


async def test_the_audit_can_be_bounded_to_the_youngest_tasks(connection: AsyncConnection, database: Database) -> None:
    await inhabit(connection)
    await connection.execute("DELETE FROM fleet.attempt")
    evidence = {each.check: each for each in audit(database, 1)}
    assert evidence["attempts"].answer is Answer.PASS
    assert evidence["attempts"].evidence == "nothing found in 1 rows"


async def test_an_audit_cannot_write(
    connection: AsyncConnection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await inhabit(connection)
    monkeypatch.setattr(ask, "ORPHANS", Statement("DELETE FROM fleet.task RETURNING id::text, :found::text"))
    with ask.visit(database) as session, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        ask.find(session, ask.ORPHANS)
