"""The roles of `fleet db grants`: every role on every table and at every verb, what works and what is refused."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from uuid_utils.compat import uuid7

from fleet.config import Settings
from fleet.lease import Lease
from fleet.postgres import (
    cancel,
    claim,
    dead_letter,
    expire,
    grants,
    heartbeat,
    inspect,
    listen,
    migrate,
    prune,
    queue,
    reap,
    settle,
)
from fleet.postgres.database import AsyncConnection, Connection, Database, identifier, run, run_sync
from fleet.postgres.grants import Role
from fleet.postgres.scratch import new_database
from fleet.postgres.submit import Submission, copy
from fleet.postgres.tables import metadata
from fleet.task import Errored, FailureCode, Released, Settlement, Succeeded
from tests.postgres.roles import NOBODY, House, house
from tests.postgres.steps import MINUTE, end_lease, lanes_of, settle_one, sweeper, take
from tests.support import new_lease, submit

# What each role may do to each table: S, I, U, D; in small letters only to some columns. The owner, and the migrator who
# acts for it, may do everything; who was granted no role may do nothing.
MAY = {
    "task": {"worker": "SIUD", "api": "SIu", "reader": "s"},
    "lease": {"worker": "SIUD", "api": "S", "reader": "S"},
    "queue": {"worker": "SIU", "api": "SIU", "reader": "S"},
    "cancel_request": {"worker": "SD", "api": "SI", "reader": "S"},
    "attempt": {"worker": "SID", "api": "S", "reader": "S"},
    "submission": {"worker": "SIuD", "api": "SIu", "reader": "S"},
    "counter": {"worker": "SIUD", "api": "S", "reader": "S"},
    "audit": {"worker": "S", "api": "SI", "reader": "S"},
    "api_token": {"api": "Su"},
    grants.VERSION: {"worker": "S", "api": "S", "reader": "S"},
}
COLUMNS = {
    ("task", "u"): {
        *("state", "run_at", "expires_at", "failures", "losses", "lease_id", "finished_at", "cancel_requested"),
        *("failure_code", "failure_reason", "resolved_at"),
    },
    ("task", "s"): {column.name for column in metadata.tables["fleet.task"].columns} - {"args", "result"},
    ("submission", "u"): {"key"},
    ("api_token", "u"): {"last_used_at"},
}
EVERYTHING = "SIUDT"
PRIVILEGES = {"S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE", "T": "TRUNCATE"}
EVERYBODY = [*(role.value for role in Role), NOBODY]


@pytest.fixture(scope="module")
def roles(server_url: str, template: str) -> Iterator[House]:
    with new_database(server_url, template) as url, house(url) as lent:
        yield lent


def columns_of(roles: House, table: str) -> list[str]:
    found = roles.rows(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", f"fleet.{table}"
    )
    return [str(row[0]) for row in found]


def may(who: str, table: str) -> str:
    if who in ("owner", "migrator"):
        return EVERYTHING
    return MAY[table].get(who, "")


def attempts_at(table: str, letter: str, columns: list[str]) -> Iterator[tuple[str, sql.Composed]]:
    """Yield statements that each try one privilege, on a column or (column "") on the table. None changes a row."""
    place = sql.Identifier("fleet", table)
    match letter:
        case "S":
            for column in columns:
                yield column, sql.SQL("SELECT {} FROM {} LIMIT 0").format(sql.Identifier(column), place)
        case "U":
            for column in columns:
                value = sql.SQL("DEFAULT" if (table, column) == ("audit", "id") else "NULL")
                yield column, sql.SQL("UPDATE {} SET {} = {} WHERE false").format(place, sql.Identifier(column), value)
        case "I":
            yield (
                "",
                sql.SQL("INSERT INTO {} ({}) SELECT {} WHERE false").format(
                    place,
                    sql.SQL(", ").join(sql.Identifier(each) for each in columns if (table, each) != ("audit", "id")),
                    sql.SQL(", ").join(sql.SQL("NULL") for each in columns if (table, each) != ("audit", "id")),
                ),
            )
        case "D":
            yield "", sql.SQL("DELETE FROM {} WHERE false").format(place)
        case "T":
            yield "", sql.SQL("TRUNCATE {}").format(place)


def test_every_table_stands_in_what_is_expected(roles: House) -> None:
    found = roles.rows(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'fleet'::regnamespace AND relkind = 'r'"
    )
    assert {str(row[0]) for row in found} == set(MAY)


@pytest.mark.parametrize("table", MAY)
@pytest.mark.parametrize("who", EVERYBODY)
def test_a_role_may_do_to_a_table_what_its_job_needs_and_nothing_else(roles: House, who: str, table: str) -> None:
    columns = columns_of(roles, table)
    expected, allowed, refused = set(), set(), set()
    with psycopg.connect(roles.url_of(who), autocommit=True) as connection:
        for letter, privilege in PRIVILEGES.items():
            for column, statement in attempts_at(table, letter, columns):
                some = letter.lower() in may(who, table) and column in COLUMNS[table, letter.lower()]
                if letter in may(who, table) or some:
                    expected.add((privilege, column))
                try:
                    with connection.transaction(force_rollback=True):
                        connection.execute(statement)
                    allowed.add((privilege, column))
                except psycopg.errors.InsufficientPrivilege:
                    refused.add((privilege, column))
    assert allowed == expected
    assert len(allowed | refused) == 3 + 2 * len(columns)


@dataclass
class Scene:
    """What a verb is tried on: made anew for each try by an administrator."""

    task: UUID
    lease: Lease
    ended: Lease
    held: Settlement
    dead: UUID
    database: Database


Verb = Callable[[AsyncConnection, Scene], Awaitable[object]]
ME = uuid7()
SECOND = timedelta(seconds=1)


async def set_scene(admin: AsyncConnection, database: Database) -> Scene:
    lease, ended = [await new_lease(admin, ttl=MINUTE) for _ in range(2)]
    dead = await take(admin, lease)
    await settle_one(admin, dead, Errored(FailureCode.HANDLER_ERROR, "boom", None))
    held = Settlement(await take(admin, lease), Succeeded("7"))
    await take(admin, ended)
    await end_lease(admin, ended)
    return Scene(await submit(admin), lease, ended, held, dead.id, database)


async def copy_some(connection: AsyncConnection, scene: Scene) -> None:
    like = Submission(uuid7(), "default", "work", "{}")
    await copy(connection, like, [(uuid7(), "{}") for _ in range(3)], lambda _: None)


async def claim_one(connection: AsyncConnection, scene: Scene) -> None:
    claimed = await claim.claim(connection, scene.lease, lanes_of("default"), {"work": True}, 1)
    assert claimed
    assert len(claimed.tasks) == 1


async def register(connection: AsyncConnection, scene: Scene) -> None:
    await new_lease(connection)


async def renew(connection: AsyncConnection, scene: Scene) -> None:
    assert await run(connection, heartbeat.RENEW, lease=scene.lease.id)


async def drain_and_close(connection: AsyncConnection, scene: Scene) -> None:
    assert await heartbeat.drain(connection, scene.lease.id)
    assert await heartbeat.close(connection, scene.lease)


async def succeed(connection: AsyncConnection, scene: Scene) -> None:
    assert not await settle.succeed(connection, scene.held.task.lease, [scene.held])


async def give_back(connection: AsyncConnection, scene: Scene) -> None:
    await settle.give_back(connection, scene.lease, [Settlement(scene.held.task, Released("drain"))])


async def sweep(connection: AsyncConnection, scene: Scene) -> None:
    assert (await reap.sweep(connection, sweeper(ME), [scene.ended.id])).requeued == 1


async def expire_all(connection: AsyncConnection, scene: Scene) -> None:
    await expire.expire(connection, ME)


async def result(connection: AsyncConnection, scene: Scene) -> None:
    assert await run(connection, inspect.RESULT, id=scene.held.task.id)


async def look(connection: AsyncConnection, scene: Scene) -> None:
    def ask() -> None:
        with scene.database.engine("test").connect() as engine:
            for question in (inspect.tasks(), inspect.workers(every=True), inspect.queues(), inspect.dead_letters()):
                assert engine.execute(question).fetchall()
            assert engine.execute(inspect.history(scene.dead)).fetchall()

    await asyncio.to_thread(ask)


async def show(connection: AsyncConnection, scene: Scene) -> None:
    def ask() -> None:
        with scene.database.engine("test").connect() as engine:
            assert engine.execute(inspect.one_task(scene.task)).fetchall()

    await asyncio.to_thread(ask)


async def check(connection: AsyncConnection, scene: Scene) -> None:
    assert await asyncio.to_thread(migrate.check, scene.database)


async def change_the_schema(connection: AsyncConnection, scene: Scene) -> None:
    async with connection.transaction(force_rollback=True):
        await connection.execute("ALTER TABLE fleet.queue ADD COLUMN another text")


WHO: dict[str, tuple[Verb, str]] = {
    "submit": (lambda c, s: submit(c), "worker api"),
    "submit once": (lambda c, s: submit(c, key=str(uuid7())), "worker api"),
    "submit many": (copy_some, "worker api"),
    "claim": (claim_one, "worker"),
    "peek": (lambda c, s: claim.peek(c, lanes_of("default"), ["work"]), "worker api reader"),
    "look back": (lambda c, s: claim.look_back(c, lanes_of("default"), ["work"]), "worker api reader"),
    "fetch arguments": (lambda c, s: claim.fetch_args(c, s.held.task), "worker api"),
    "reconcile": (lambda c, s: claim.reconcile(c, s.lease, []), "worker"),
    "register": (register, "worker"),
    "renew": (renew, "worker"),
    "renew alone": (lambda c, s: run(c, heartbeat.RENEW_ALONE, lease=s.lease.id), "worker"),
    "drain": (drain_and_close, "worker"),
    "sleep": (lambda c, s: listen.set_idle(c, s.lease.id, idle=True), "worker"),
    "listen": (lambda c, s: listen.listen(c), "worker api reader nobody"),
    "succeed": (succeed, "worker"),
    "give back": (give_back, "worker"),
    "record late": (lambda c, s: settle.record_late(c, s.lease, [s.held]), "worker"),
    "survey": (lambda c, s: reap.survey(c), "worker api reader"),
    "mark": (lambda c, s: reap.mark(c, ME, [s.lease.id]), "worker"),
    "end": (lambda c, s: reap.end(c, ME, [s.lease.id]), "worker"),
    "sweep": (sweep, "worker"),
    "expire": (expire_all, "worker"),
    "prune": (lambda c, s: prune.prune(c, ME, 1_900_000_000_000, SECOND), "worker"),
    "forget": (lambda c, s: cancel.forget(c), "worker"),
    "cancel": (lambda c, s: cancel.cancel(c, [s.task, s.held.task.id], "ann"), "api"),
    "requeue": (lambda c, s: dead_letter.requeue(c, {s.dead: 1}, "ann"), "api"),
    "discard": (lambda c, s: dead_letter.discard(c, {s.dead: 1}, "ann"), "api"),
    "pause": (lambda c, s: queue.pause(c, "default", "ann"), "api"),
    "resume": (lambda c, s: queue.resume(c, "default", "ann"), "api"),
    "list": (look, "worker api reader"),
    "show": (show, "worker api"),
    "result": (result, "worker api"),
    "check": (check, "worker api reader"),
    "change the schema": (change_the_schema, ""),
}


@pytest.mark.parametrize("verb", WHO)
@pytest.mark.parametrize("who", EVERYBODY)
async def test_a_role_can_do_the_verbs_of_its_job_and_is_refused_all_others(roles: House, who: str, verb: str) -> None:
    settings = Settings(ttl=MINUTE)
    database = Database(roles.url_of(who), settings)
    act, allowed = WHO[verb]
    tables = sql.SQL(", ").join(sql.Identifier("fleet", table.name) for table in metadata.sorted_tables)
    async with (
        await Database(roles.url, settings).connect("test") as administrator,
        await database.connect("test role") as connection,
    ):
        await administrator.execute(sql.SQL("TRUNCATE {}").format(tables))
        scene = await set_scene(administrator, database)
        if who in (*allowed.split(), "owner", "migrator"):
            await act(connection, scene)
            return
        with pytest.raises(Exception, match=r"permission denied|must be owner") as refusal:
            await act(connection, scene)
    cause = getattr(refusal.value, "orig", refusal.value)
    assert isinstance(cause, psycopg.errors.InsufficientPrivilege)


def test_what_is_applied_again_changes_nothing_and_takes_back_what_is_too_much(roles: House) -> None:
    rights = """
        SELECT relname::text, relacl::text, (SELECT array_agg(attacl::text ORDER BY attnum) FROM pg_attribute
                                             WHERE attrelid = pg_class.oid)
        FROM pg_class
        WHERE relnamespace = 'fleet'::regnamespace
        ORDER BY relname
        """
    before = roles.rows(rights)
    with psycopg.connect(roles.url, autocommit=True) as connection:
        for each in ("TRUNCATE ON fleet.task", "UPDATE (args) ON fleet.task", "UPDATE ON fleet.audit"):
            connection.execute(f"GRANT {each} TO {identifier(roles.names[Role.API])}".encode())
    assert roles.rows(rights) != before
    roles.apply()
    assert [sorted(str(row)) for row in roles.rows(rights)] == [sorted(str(row)) for row in before]


def test_every_right_that_a_job_needs_is_told_apart_from_those_it_has(roles: House) -> None:
    everything = frozenset[grants.Right]().union(*grants.NEEDS.values())
    for role in Role:
        with Connection.connect(roles.url_of(role), autocommit=True) as connection:
            enters, held = grants.held(connection)
        needs = grants.NEEDS.get(role, everything)
        assert enters, role
        assert needs <= held, role
        assert (held == everything) is (role in (Role.OWNER, Role.MIGRATOR)), role
    with Connection.connect(roles.url_of(NOBODY), autocommit=True) as connection:
        assert grants.held(connection) == (False, frozenset())


def test_a_heartbeat_needs_the_worker_role_in_plain_code_too(roles: House) -> None:
    lease = Lease(uuid7(), "worker", MINUTE)
    identity = heartbeat.Identity("worker", "host", 1, "test", ("default",), 1)
    for who, refused in (("worker", False), ("api", True)):
        with Database(roles.url_of(who), Settings()).connect_sync("test") as connection:
            if refused:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    run_sync(connection, heartbeat.RENEW, lease=lease.id)
            else:
                heartbeat.register(connection, lease, identity)
                assert heartbeat.renew(connection, lease) is not None
