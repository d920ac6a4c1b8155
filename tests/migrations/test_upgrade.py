"""The schema is made by the migrations alone: from nothing, again, by many at once, and by hand from the printed SQL."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection as AlchemyConnection
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from fleet import schema
from fleet.config import Settings
from fleet.errors import SchemaMismatch
from fleet.postgres import migrate
from fleet.postgres.database import Database
from fleet.postgres.scratch import new_database
from fleet.postgres.tables import metadata
from tests.support import eventually_sync

ROOT = Path(__file__).parents[2]
VERSION_TABLE = "fleet.fleet_alembic_version"


@pytest.fixture
def empty(server_url: str) -> Iterator[Database]:
    """A database with nothing in it."""
    with new_database(server_url, "template1") as url:
        yield Database(url, Settings())


def connect(database: Database) -> "psycopg.Connection[tuple[Any, ...]]":
    return psycopg.connect(database.conninfo("test"), autocommit=True)


def shape(database: Database) -> list[tuple[Any, ...]]:
    """Everything in the schema, as PostgreSQL describes it."""
    with connect(database) as connection:
        return connection.execute(
            """
            SELECT 'column', format('%s.%s', attrelid::regclass, attname), format_type(atttypid, atttypmod), attnotnull::text,
                   coalesce(pg_get_expr(adbin, adrelid), attidentity::text)
            FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
            LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE relnamespace = 'fleet'::regnamespace AND relkind = 'r' AND attnum > 0
            UNION ALL
            SELECT 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid), '', ''
            FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
            WHERE relnamespace = 'fleet'::regnamespace
            UNION ALL
            SELECT 'constraint', conname, pg_get_constraintdef(oid), conrelid::regclass::text, ''
            FROM pg_constraint WHERE connamespace = 'fleet'::regnamespace
            UNION ALL
            SELECT 'options', oid::regclass::text, array_to_string(reloptions, ' '), '', ''
            FROM pg_class WHERE relnamespace = 'fleet'::regnamespace
            UNION ALL
            SELECT 'function', proname, prosrc, '', '' FROM pg_proc WHERE pronamespace = 'fleet'::regnamespace
            UNION ALL
            SELECT 'trigger', tgname, pg_get_triggerdef(pg_trigger.oid), '', ''
            FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
            WHERE relnamespace = 'fleet'::regnamespace AND NOT tgisinternal
            ORDER BY 1, 2, 3, 4, 5
            """
        ).fetchall()


def test_an_empty_database_is_brought_to_the_newest_schema(empty: Database) -> None:
    migrate.upgrade(empty)

    kinds = {row[0] for row in shape(empty)}
    tables = {row[1].split(".")[1] for row in shape(empty) if row[0] == "column"}
    assert kinds == {"column", "index", "constraint", "options", "function", "trigger"}
    assert {table.name for table in metadata.sorted_tables} | {"fleet_alembic_version"} == tables
    with connect(empty) as connection:
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    assert row == (migrate.check(empty),)


def test_nothing_is_made_outside_the_schema_fleet(empty: Database) -> None:
    migrate.upgrade(empty)
    with connect(empty) as connection:
        others = connection.execute(
            "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            " WHERE nspname NOT IN ('fleet', 'pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchall()
    assert others == []


def test_a_second_upgrade_does_nothing_and_harms_no_data(empty: Database) -> None:
    migrate.upgrade(empty)
    with connect(empty) as connection:
        connection.execute("INSERT INTO fleet.queue (name, generation) VALUES ('default', 7)")
    before = shape(empty)

    migrate.upgrade(empty)

    assert shape(empty) == before
    with connect(empty) as connection:
        assert connection.execute("SELECT generation FROM fleet.queue").fetchall() == [(7,)]


@pytest.mark.fault("Deploy", "two migrators at once")
def test_several_migrators_at_once_make_one_schema(empty: Database) -> None:
    start = threading.Barrier(6)

    def upgrade() -> str:
        start.wait(timeout=30)
        migrate.upgrade(empty)
        return migrate.check(empty)

    with ThreadPoolExecutor(6) as pool:
        revisions = {future.result(timeout=60) for future in [pool.submit(upgrade) for _ in range(6)]}

    assert revisions == {migrate.check(empty)}
    with connect(empty) as connection:
        assert connection.execute(f"SELECT count(*) FROM {VERSION_TABLE}").fetchall() == [(1,)]


@pytest.mark.fault("Deploy", "two migrators at once")
def test_a_migrator_waits_for_another(empty: Database) -> None:
    with connect(empty) as first, ThreadPoolExecutor(1) as pool:
        with first.transaction():
            first.execute("SELECT pg_advisory_xact_lock(%s)", (migrate.MIGRATOR,))
            running = pool.submit(migrate.upgrade, empty)
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (%s)"
            database = "SELECT oid FROM pg_database WHERE datname = current_database()"
            eventually_sync(lambda: first.execute(waiting.replace("%s", database).encode()).fetchone() == (1,))
            assert not running.done()
            assert first.execute("SELECT to_regclass('fleet.task')").fetchone() == (None,)
        running.result(timeout=60)
    migrate.check(empty)


def differences(connection: AlchemyConnection) -> list[Any]:
    """What alembic would have to do to make the tables that SQLAlchemy knows."""
    opts: dict[str, Any] = {
        "include_schemas": True,
        "include_name": lambda name, kind, _: kind != "schema" or name == "fleet",
        # the version table is alembic's own, and indexes stand in the migrations alone
        "include_object": lambda _, name, kind, reflected, __: (
            name != "fleet_alembic_version" and not (kind == "index" and reflected)
        ),
        "compare_type": True,
        "compare_server_default": True,
    }
    found: list[Any] = compare_metadata(MigrationContext.configure(connection, opts=opts), metadata)
    return found


def test_the_tables_that_sqlalchemy_knows_are_those_that_the_migrations_make(empty: Database) -> None:
    migrate.upgrade(empty)
    with empty.engine("test").connect() as connection:
        assert differences(connection) == []
        connection.rollback()
        for change in (
            "ALTER TABLE fleet.task ADD COLUMN another text",
            "ALTER TABLE fleet.queue DROP COLUMN paused",
            "ALTER TABLE fleet.queue ALTER generation TYPE int",
            "ALTER TABLE fleet.queue ALTER generation DROP NOT NULL",
            "ALTER TABLE fleet.queue ALTER generation SET DEFAULT 1",
            "CREATE TABLE fleet.another ()",
        ):
            connection.execute(text(change))
            assert differences(connection), f"{change} would not be found"
            connection.rollback()


def test_the_printed_statements_make_the_same_schema(empty: Database, server_url: str) -> None:
    migrate.upgrade(empty)
    expected = shape(empty)
    with connect(empty) as connection:
        connection.execute("DROP SCHEMA fleet CASCADE")
        connection.execute(migrate.statements().encode())

    assert shape(empty) == expected
    assert migrate.check(empty)
    migrate.upgrade(empty)
    assert shape(empty) == expected


def test_a_database_without_the_schema_says_what_to_run(empty: Database) -> None:
    with pytest.raises(SchemaMismatch, match=r"no fleet schema yet\. Run `fleet db upgrade`"):
        migrate.check(empty)


def test_a_database_newer_than_the_code_asks_for_newer_code(empty: Database) -> None:
    migrate.upgrade(empty)
    with connect(empty) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(SchemaMismatch, match=r"revision 9999, which this version .* does not know\. Upgrade pgfleet"):
        migrate.check(empty)


def test_a_database_older_than_the_code_is_told_to_upgrade(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(empty)
    with_a_second_revision(tmp_path, monkeypatch, "pass")
    assert migrate.check(empty) == "0001"
    monkeypatch.setattr(schema, "SCHEMA_MIN", 2)

    with pytest.raises(SchemaMismatch, match=r"at revision \w+, this code needs 0002\. Run `fleet db upgrade`"):
        migrate.check(empty)

    migrate.upgrade(empty)
    assert migrate.check(empty) == "0002"


def with_a_second_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let there be one revision more than there is."""
    scripts = tmp_path / "alembic"
    head = ScriptDirectory.from_config(migrate._config()).get_current_head()
    (scripts / "versions").mkdir(parents=True)
    for path in (ROOT / "alembic").glob("**/*.py"):
        (scripts / path.relative_to(ROOT / "alembic")).write_text(path.read_text())
    (scripts / "versions" / "0002_one_more.py").write_text(
        f"from alembic import op\n\nrevision, down_revision = '0002', {head!r}\n\n\ndef upgrade():\n    {body}\n"
    )
    monkeypatch.setattr(migrate, "_scripts", lambda: scripts)


@pytest.mark.fault("Deploy", "a migration while workers run")
@pytest.mark.parametrize("table", ["fleet.task", VERSION_TABLE])
def test_a_table_in_use_is_waited_for_a_little_at_a_time(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """It gives up its place in the queue for the lock, so that nobody waits behind it, and comes again."""
    migrate.upgrade(empty)
    with_a_second_revision(tmp_path, monkeypatch, "op.execute('ALTER TABLE fleet.task ADD COLUMN extra text')")
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_MS", 20)
    tried_again = threading.Event()
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        tried_again.set()

    monkeypatch.setattr("fleet.postgres.migrate.time.sleep", nap)
    monkeypatch.setattr(migrate, "TRIES", 10_000)

    with connect(empty) as user, ThreadPoolExecutor(1) as pool:
        with user.transaction():
            user.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
            running = pool.submit(migrate.upgrade, empty)
            assert tried_again.wait(timeout=30)
            assert not running.done()
        running.result(timeout=60)

    assert naps
    assert migrate.check(empty) == "0002"
    with connect(empty) as connection:
        assert connection.execute("SELECT extra FROM fleet.task").fetchall() == []


def test_after_so_many_tries_the_error_is_shown(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(empty)
    before = shape(empty)
    with_a_second_revision(tmp_path, monkeypatch, "op.execute('ALTER TABLE fleet.task ADD COLUMN extra text')")
    naps: list[float] = []
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT_MS", 10)
    monkeypatch.setattr(migrate, "TRIES", 4)
    monkeypatch.setattr("fleet.postgres.migrate.time.sleep", naps.append)

    with connect(empty) as user, user.transaction():
        user.execute("LOCK TABLE fleet.task IN ACCESS SHARE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            migrate.upgrade(empty)

    assert naps == sorted(naps)
    assert len(naps) == 3
    assert shape(empty) == before


def test_a_migration_that_fails_leaves_nothing_and_is_not_tried_again(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(empty)
    before = shape(empty)
    with_a_second_revision(
        tmp_path, monkeypatch, "op.execute('ALTER TABLE fleet.task ADD COLUMN extra text'); op.execute('SELECT 1 / 0')"
    )
    monkeypatch.setattr("fleet.postgres.migrate.time.sleep", lambda _: pytest.fail("it was tried again"))

    with pytest.raises(Exception, match="division by zero"):
        migrate.upgrade(empty)
    assert shape(empty) == before


def test_it_works_from_any_directory_and_beside_a_package_called_alembic(empty: Database, tmp_path: Path) -> None:
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = elsewhere\n")
    program = (
        "import sys; from fleet.config import Settings; from fleet.postgres import migrate\n"
        "from fleet.postgres.database import Database\n"
        "database = Database(sys.argv[1], Settings()); migrate.upgrade(database); print(migrate.check(database))\n"
        "assert 'CREATE TABLE fleet.task' in migrate.statements()"
    )
    url = empty.conninfo("test").split(" options=")[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, url], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}, check=False,
    )  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.strip() == migrate.check(empty)
