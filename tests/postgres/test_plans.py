"""What the statements touch in a table of 1.3 million rows: judged by plans, rows and pages, never by time."""

import re
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from fleet.config import Settings
from fleet.lease import Lease
from fleet.postgres import cancel, claim, expire, measure, prune, reap, settle
from fleet.postgres.database import AsyncConnection, Database, Statement, run
from fleet.postgres.scratch import new_database
from tests.postgres.steps import MINUTE, scalar

LEASE, DEAD = UUID(int=1), UUID(int=2)  # a good lease that holds 2,000 tasks, and a reaped one that holds 600
QUEUES = ("default", "other", "empty")
LANES = [(queue, priority) for priority in range(10) for queue in QUEUES]

# Statistics and plans change when a test says so, and not in between.
QUIET = """
ALTER TABLE fleet.task SET (autovacuum_enabled = false);
ALTER TABLE fleet.task DISABLE TRIGGER wake;
"""
ROWS = """
INSERT INTO fleet.queue (name) VALUES ('default'), ('other'), ('empty');
INSERT INTO fleet.lease
  (id, worker, host, pid, version, queues, slots, schema_min, schema_max, ttl, state, granted_at, renewed_at, expires_at)
SELECT lpad(to_hex(number), 32, '0')::uuid, 'worker', 'host', 1, '1', '{default}', 8, 1, 1, '1 hour',
  CASE number WHEN 2 THEN 'REAPED' ELSE 'LIVE' END, now(), now(), now() + interval '1 hour'
FROM generate_series(1, 200) AS number;
"""
ENDED = """
INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses, state, attempt, finished_at, failure_code, result)
SELECT lpad(to_hex(number), 32, '0')::uuid, 'default', 'work', 5, 3,
  CASE WHEN mod(number, 500) = 0 THEN 'FAILED' ELSE 'SUCCEEDED' END, 1,
  now() - interval '30 days', CASE WHEN mod(number, 500) = 0 THEN 'timeout' END, '1'
FROM generate_series(%(first)s::int, %(last)s::int) AS number;
"""
MORE_ROWS = """
INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses, run_at, expires_at)
SELECT lpad(to_hex(2000000 + number), 32, '0')::uuid, 'default', 'work', 5, 3,
  now() + number * interval '1 second' + interval '1 hour',
  CASE WHEN number % 3 = 0 THEN now() + interval '1 year' END
FROM generate_series(1, 300000) AS number;

INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses, run_at, priority)
SELECT lpad(to_hex(3000000 + number), 32, '0')::uuid, CASE number % 2 WHEN 0 THEN 'default' ELSE 'other' END, 'work', 5, 3,
  now() - interval '1 minute', number % 10
FROM generate_series(1, 5000) AS number;

INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses, run_at, expires_at)
SELECT lpad(to_hex(4000000 + number), 32, '0')::uuid, 'default', 'work', 5, 3,
  now() + interval '1 hour', now() - interval '1 minute'
FROM generate_series(1, 2000) AS number;

INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses, state, attempt, repeatable, lease_id)
SELECT lpad(to_hex(5000000 + number), 32, '0')::uuid, 'default', 'work', 5, 3, 'RUNNING', 1, true,
  lpad(CASE WHEN number <= 2000 THEN '1' ELSE '2' END, 32, '0')::uuid
FROM generate_series(1, 2600) AS number;
"""


@dataclass(frozen=True, slots=True)
class Plan:
    nodes: list[dict[str, Any]]

    @property
    def indexes(self) -> set[str]:
        """The indexes of fleet.task that are used."""
        return {str(node["Index Name"]) for node in self.nodes if str(node.get("Index Name", "")).startswith("task_")}

    @property
    def scanned(self) -> bool:
        """Whether the whole of fleet.task is read."""
        return any(
            str(node["Node Type"]).endswith("Seq Scan") and node["Relation Name"] == "task" for node in self.nodes
        )

    @property
    def rows(self) -> int:
        """How many rows of fleet.task were fetched, used or not."""
        return int(
            sum(
                (
                    node["Actual Rows"]
                    + node.get("Rows Removed by Filter", 0)
                    + node.get("Rows Removed by Index Recheck", 0)
                )
                * node["Actual Loops"]
                for node in self.nodes
                if node.get("Relation Name") == "task" and "Scan" in node["Node Type"]
            )
        )

    @property
    def pages(self) -> int:
        """How many pages were touched: by the query itself, and by the writes that nothing reads from."""
        return sum(
            int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])
            for node in self.nodes
            if node is self.nodes[0] or node["Node Type"] == "ModifyTable"
        )


async def explain(connection: AsyncConnection, statement: Statement, **values: object) -> Plan:
    """Run a statement by the plan that this session keeps for it, undo it, and tell what it did."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.native.decode())))
    known = await connection.execute("SELECT FROM pg_prepared_statements WHERE name = %s", (_name(statement),))
    if known.rowcount == 0:
        await connection.execute(f"PREPARE {_name(statement)} AS {_numbered(statement, names)}".encode())
    given = sql.SQL(", ").join(sql.Literal(values[name]) for name in names)
    execute = sql.SQL("EXECUTE {}({})").format(sql.SQL(_name(statement)), given)
    async with connection.transaction(force_rollback=True):
        cursor = await connection.execute(
            sql.SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) ")
            + (execute if names else sql.SQL(f"EXECUTE {_name(statement)}"))
        )
        answer = await cursor.fetchone()
    assert answer is not None
    return Plan(list(_nodes(answer[0][0]["Plan"])))


def _name(statement: Statement) -> str:
    return f"s{zlib.crc32(statement.native)}"


def _numbered(statement: Statement, names: list[str]) -> str:
    text = statement.native.decode().replace("%%", "%")
    for number, name in enumerate(names, start=1):
        text = text.replace(f"%({name})s", f"${number}")
    return text


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


@pytest.fixture(scope="module")
def large_url(server_url: str, template: str) -> Iterator[str]:
    """A database with 10⁶ terminal and 3 · 10⁵ delayed tasks, analysed when it held a thousand."""
    with new_database(server_url, template) as url:
        with psycopg.connect(url) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute(QUIET.encode())
            connection.execute(ROWS.encode())
            connection.execute(ENDED.encode(), {"first": 1, "last": 1000})
            connection.execute("ANALYZE fleet.task, fleet.lease, fleet.queue")
            connection.commit()
            connection.execute(ENDED.encode(), {"first": 1001, "last": 1_000_000})
            connection.execute(MORE_ROWS.encode())
        yield url


@pytest.fixture(scope="module")
async def grown(server_url: str, template: str) -> AsyncIterator[AsyncConnection]:
    """A worker's session that made and kept its plans when there was no task at all; there are 4 · 10⁵ now."""
    with new_database(server_url, template) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(QUIET.encode())
        async with await Database(url, Settings()).connect("claim") as session:
            for statement, values in hot_statements():
                await explain(session, statement, **values)
            connection.execute(ROWS.encode())
            connection.execute(ENDED.encode(), {"first": 1, "last": 100_000})
            connection.execute(MORE_ROWS.encode())
            yield session


@pytest.fixture(scope="module", params=["planned when empty", "stale", "none", "fresh"])
async def large(
    request: pytest.FixtureRequest, large_url: str, grown: AsyncConnection
) -> AsyncIterator[AsyncConnection]:
    """A worker's session: with its first plans, with statistics from when it was small, without any, with fresh ones."""
    if request.param == "planned when empty":
        yield grown
        return
    async with await Database(large_url, Settings()).connect("claim") as connection:
        match request.param:
            case "none":
                await connection.execute("VACUUM (INDEX_CLEANUP ON) fleet.task")  # what other tests have undone
                await connection.execute("DELETE FROM pg_statistic WHERE starelid = 'fleet.task'::regclass")
                await connection.execute(
                    "UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = 'fleet.task'::regclass"
                )
            case "fresh":
                await connection.execute("VACUUM (ANALYZE, INDEX_CLEANUP ON) fleet.task")
        yield connection


def hot_statements() -> list[tuple[Statement, dict[str, object]]]:
    """What a worker's sessions run again and again, with values that find nothing."""
    nobody = [UUID(int=9)]
    return [
        (claim.CLAIM, claiming(64)),
        (claim.PEEK, {"names": ["work", "play"], **where()}),
        (claim.LOOK_BACK, {"names": ["work", "play"], **where()}),
        (settle.SUCCEED, {"lease": LEASE, "ids": nobody, "attempts": [1], "results": ["1"]}),
        (
            settle.GIVE_BACK,
            {
                "lease": LEASE, "ids": nobody, "attempts": [1], "outcomes": ["error"], "delays": [MINUTE], "codes": ["c"],
                "reasons": ["why"],
            },
        ),
        (reap.SURVEY, {}),
        (reap.SUSPECTS, {"leases": [DEAD], "after": reap.NOBODY, "batch": 500}),
        (
            reap.RECLAIM,
            {
                "me": LEASE, "ids": nobody, "attempts": [1], "leases": [DEAD], "reasons": ["why"], "backoff_base": MINUTE,
                "backoff_cap": MINUTE,
            },
        ),
        (reap.CLEAR, {"leases": [DEAD]}),
        (claim.RECONCILE, {"lease": DEAD, "mine": nobody}),
        (reap.ORPHANS, {"after": reap.NOBODY, "batch": 500}),
        (expire.EXPIRE, {"me": LEASE, "batch": 500}),
        (
            prune.PRUNE_TASKS,
            {
                "me": LEASE, "after": UUID(int=500_000), "before": UUID(int=1 << 100), "batch": 1000, "retention": MINUTE,
            },
        ),
    ]  # fmt: skip


async def running(connection: AsyncConnection, lease: UUID, count: int) -> list[UUID]:
    """Tasks of a lease, far from one another."""
    cursor = await connection.execute(
        "SELECT id FROM fleet.task WHERE state = 'RUNNING' AND lease_id = %s ORDER BY md5(id::text) LIMIT %s",
        (lease, count),
    )
    return [row[0] for row in await cursor.fetchall()]


def where(lanes: list[tuple[str, int]] = LANES, run_at: str = "-infinity") -> dict[str, object]:
    return {
        "queues": [queue for queue, _ in lanes],
        "priorities": [priority for _, priority in lanes],
        "run_ats": [run_at for _ in lanes],
        "ids": [UUID(int=0) for _ in lanes],
    }


def claiming(free: int, **lanes: object) -> dict[str, object]:
    return {
        "lease": LEASE, "free": free, "names": ["work", "play"], "idempotents": [True, False], "inline_bytes": 8192,
    } | (lanes or where())  # fmt: skip


async def test_a_bad_plan_is_recognised(large: AsyncConnection) -> None:
    await large.execute("SET enable_seqscan = on")
    plan = await explain(large, Statement("SELECT FROM fleet.task WHERE name = 'nothing' AND attempt = 3"))
    await large.execute("SET enable_seqscan = off")
    assert plan.scanned
    assert plan.indexes == set()
    assert plan.rows > 400_000
    assert plan.pages > 4_000


@pytest.mark.parametrize("free", [1, 64, 200])
async def test_a_claim_walks_the_ready_index_and_fetches_what_it_takes(large: AsyncConnection, free: int) -> None:
    plan = await explain(large, claim.CLAIM, **claiming(free))
    assert plan.indexes == {"task_ready", "task_pkey"}
    assert not plan.scanned
    assert free <= plan.rows <= 2 * free + len(LANES)
    assert plan.pages <= 60 * free + 10 * len(LANES)


@pytest.mark.parametrize("queue", ["default", "empty"])
async def test_a_claim_that_finds_nothing_does_not_look_at_the_delayed(large: AsyncConnection, queue: str) -> None:
    lanes = [(queue, 5)] if queue == "empty" else [("default", priority) for priority in range(10)]
    run_at = "-infinity" if queue == "empty" else str(await scalar(large, "SELECT statement_timestamp()"))
    plan = await explain(large, claim.CLAIM, **claiming(64, **where(lanes, run_at)))
    assert plan.indexes == {"task_ready", "task_pkey"}
    assert not plan.scanned
    assert plan.rows == 0
    assert plan.pages <= 10 * len(lanes) + 30


@pytest.mark.parametrize("run_at", ["-infinity", "now"])
async def test_a_peek_walks_the_ready_index_and_fetches_one_row_a_lane(large: AsyncConnection, run_at: str) -> None:
    plan = await explain(large, claim.PEEK, names=["work", "play"], **where(run_at=run_at))
    assert plan.indexes == {"task_ready"}
    assert not plan.scanned
    assert plan.rows <= 2 * len(LANES)
    assert plan.pages <= 20 * len(LANES)


async def test_a_look_back_walks_the_ready_index_and_fetches_one_row_a_lane(large: AsyncConnection) -> None:
    now = str(await scalar(large, "SELECT statement_timestamp()"))
    plan = await explain(large, claim.LOOK_BACK, names=["work", "play"], **where(run_at=now))
    assert plan.indexes == {"task_ready"}
    assert not plan.scanned
    assert plan.rows <= 2 * len(LANES)
    assert plan.pages <= 20 * len(LANES)


@pytest.mark.parametrize("count", [1, 50, 1000])
async def test_a_success_finds_its_rows_by_the_primary_key(large: AsyncConnection, count: int) -> None:
    ids = await running(large, LEASE, count)
    plan = await explain(large, settle.SUCCEED, lease=LEASE, ids=ids, attempts=[1] * count, results=["1"] * count)
    assert plan.indexes == {"task_pkey"}
    assert not plan.scanned
    assert count <= plan.rows <= 2 * count
    assert plan.pages <= 60 * count + 50


@pytest.mark.parametrize("outcome", ["error", "released", "cancelled"])
@pytest.mark.parametrize("count", [1, 50, 1000])
async def test_giving_back_finds_its_rows_by_the_primary_key(large: AsyncConnection, count: int, outcome: str) -> None:
    ids = await running(large, LEASE, count)
    plan = await explain(
        large, settle.GIVE_BACK, lease=LEASE, ids=ids, attempts=[1] * count, outcomes=[outcome] * count,
        delays=[MINUTE] * count, codes=["handler_error"] * count, reasons=["why"] * count,
    )  # fmt: skip
    assert plan.indexes == {"task_pkey"}
    assert not plan.scanned
    assert count <= plan.rows <= 2 * count
    assert plan.pages <= 90 * count + 80


async def test_whether_a_task_is_overdue_is_asked_of_the_index_of_what_expires(large: AsyncConnection) -> None:
    plan = await explain(large, reap.SURVEY)
    assert plan.indexes == {"task_expiring"}
    assert not plan.scanned
    assert plan.rows == 1


async def test_suspects_are_found_by_the_running_index(large: AsyncConnection) -> None:
    plan = await explain(large, reap.SUSPECTS, leases=[DEAD], after=reap.NOBODY, batch=500)
    assert plan.indexes == {"task_running"}
    assert not plan.scanned
    assert plan.rows <= 600
    assert plan.pages <= 700


async def test_a_reclaim_finds_its_rows_by_the_primary_key(large: AsyncConnection) -> None:
    ids = await running(large, DEAD, 500)
    plan = await explain(
        large, reap.RECLAIM, me=LEASE, ids=ids, attempts=[1] * 500, leases=[DEAD] * 500, reasons=["why"] * 500,
        backoff_base=MINUTE, backoff_cap=MINUTE,
    )  # fmt: skip
    assert plan.indexes == {"task_pkey"}
    assert not plan.scanned
    assert 500 <= plan.rows <= 1000
    assert plan.pages <= 90 * 500


async def test_whether_a_lease_holds_anything_is_asked_of_the_running_index(large: AsyncConnection) -> None:
    for statement, values in (
        (reap.CLEAR, {"leases": [DEAD]}),
        (claim.RECONCILE, {"lease": DEAD, "mine": [UUID(int=9)]}),
        (reap.ORPHANS, {"after": reap.NOBODY, "batch": 500}),
    ):
        plan = await explain(large, statement, **values)
        assert plan.indexes == {"task_running"}
        assert not plan.scanned
        assert plan.rows <= 2600


async def test_the_expired_are_found_by_their_own_index(large: AsyncConnection) -> None:
    plan = await explain(large, expire.EXPIRE, me=LEASE, batch=500)
    assert not plan.scanned
    assert plan.indexes == {"task_expiring", "task_pkey"}
    assert 500 <= plan.rows <= 1000
    assert plan.pages <= 60 * 500


async def test_a_cancel_finds_its_rows_by_the_primary_key(large: AsyncConnection) -> None:
    ids = await running(large, LEASE, 100)
    plan = await explain(large, cancel.CANCEL, ids=ids, actor="ann")
    assert plan.indexes == {"task_pkey"}
    assert not plan.scanned
    assert plan.rows <= 200


async def test_pruning_walks_the_primary_key_from_the_oldest_on(large: AsyncConnection) -> None:
    plan = await explain(
        large,
        prune.PRUNE_TASKS,
        me=LEASE,
        after=UUID(int=500_000),
        before=UUID(int=1 << 100),
        batch=1000,
        retention=MINUTE,
    )
    assert plan.indexes == {"task_pkey"}
    assert not plan.scanned
    assert plan.rows <= 2000


async def test_the_cursor_spares_what_an_old_snapshot_keeps(shared_url: str) -> None:
    """Dead versions of 20,000 settled tasks lie at the head; a claim from the cursor does not meet them."""
    database = Database(shared_url, Settings())
    async with await database.connect("claim") as worker, await database.connect("old snapshot") as old:
        lease = Lease(LEASE, "worker", MINUTE)
        await worker.execute(ROWS.encode())
        await worker.execute(
            "INSERT INTO fleet.task (id, queue, name, max_attempts, max_losses)"
            " SELECT gen_random_uuid(), 'default', 'work', 5, 3 FROM generate_series(1, 20000)"
        )
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.execute("SELECT count(*) FROM fleet.task")
        position, seen = claim.HEAD, 0
        while seen < 20_000:
            claimed = await claim.claim(worker, lease, [claim.Lane("default", 5, position)], {"work": True}, 1000)
            assert claimed is not None
            last = max(claimed.tasks, key=lambda task: (task.run_at, task.id))
            position, seen = claim.Position(last.run_at.isoformat(), last.id), seen + len(claimed.tasks)
            tasks = {"ids": [task.id for task in claimed.tasks], "attempts": [1] * len(claimed.tasks)}
            assert await run(worker, settle.SUCCEED, lease=LEASE, results=["1"] * len(claimed.tasks), **tasks) == []

        behind = {"queues": ["default"], "priorities": [5], "run_ats": [position.run_at], "ids": [position.id]}
        from_head = where([("default", 5)])
        assert (await explain(worker, claim.PEEK, names=["work"], **behind)).pages < 100
        assert (await explain(worker, claim.CLAIM, **claiming(64, **behind))).pages < 200
        assert (await explain(worker, claim.PEEK, names=["work"], **from_head)).pages > 400
        assert (await explain(worker, claim.CLAIM, **claiming(64, **from_head))).pages > 400
        await old.execute("ROLLBACK")


async def test_the_fleet_s_metrics_count_so_far_and_no_further(large: AsyncConnection) -> None:
    """Of 300,000 delayed tasks and 10⁶ finished ones no more is read than the limits say, and all of it by indexes."""
    plan = await explain(
        large,
        measure.MEASURE,
        queues_max=measure.QUEUES_MAX,
        rows_max=measure.ROWS_MAX,
        count_min=measure.COUNT_MIN,
    )
    assert not plan.scanned
    assert plan.indexes == {"task_ready", "task_running", "task_dead"}
    assert 5000 + 3333 + 2600 <= plan.rows <= 3 * measure.ROWS_MAX
    assert plan.pages <= 4 * measure.ROWS_MAX
