"""The schema under the roles of `fleet db grants`: applied before there is any, migrated by who is no superuser."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import ProgrammingError

from fleet.config import Settings
from fleet.postgres import grants, migrate
from fleet.postgres.database import Connection, Database
from fleet.postgres.grants import Role
from fleet.postgres.scratch import new_database
from tests.migrations.test_upgrade import with_a_second_revision
from tests.postgres.roles import House, house

OWNERS = """
SELECT DISTINCT pg_get_userbyid(owner)
FROM (
  SELECT relowner FROM pg_class WHERE relnamespace = 'fleet'::regnamespace
  UNION ALL
  SELECT proowner FROM pg_proc WHERE pronamespace = 'fleet'::regnamespace
  UNION ALL
  SELECT nspowner FROM pg_namespace WHERE nspname = 'fleet'
) AS thing (owner)
"""


@pytest.fixture
def roles(server_url: str) -> Iterator[House]:
    """A database that has the roles and no schema yet."""
    with new_database(server_url, "template1") as url, house(url) as lent:
        yield lent


def database_of(roles: House, who: str) -> Database:
    return Database(roles.url_of(who), Settings())


def holds(roles: House, role: Role) -> bool:
    """Whether a role holds all that its job needs."""
    with Connection.connect(roles.url_of(role), autocommit=True) as connection:
        return grants.NEEDS[role] <= grants.held(connection)[1]


def test_a_migrator_makes_and_changes_a_schema_that_belongs_to_the_owner(
    roles: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrator = database_of(roles, "migrator")
    migrate.upgrade(migrator)
    migrate.upgrade(migrator)
    assert roles.rows(OWNERS) == [(roles.names[Role.OWNER],)]
    with_a_second_revision(tmp_path, monkeypatch, "op.execute('ALTER TABLE fleet.task ADD COLUMN extra text')")
    migrate.upgrade(Database(roles.url, Settings()))  # as a superuser: it makes no difference
    assert migrate.check(migrator) == "0002"
    assert roles.rows(OWNERS) == [(roles.names[Role.OWNER],)]


def test_who_is_no_migrator_cannot_migrate(roles: House) -> None:
    for who in ("worker", "api", "reader", "nobody"):
        with pytest.raises(ProgrammingError, match="permission denied") as refusal:
            migrate.upgrade(database_of(roles, who))
        assert isinstance(refusal.value.orig, psycopg.errors.InsufficientPrivilege)
    assert roles.rows("SELECT to_regclass('fleet.task')") == [(None,)]


def test_new_tables_are_open_to_those_who_must_go_on_and_to_readers_once_the_roles_are_applied_again(
    roles: House,
) -> None:
    migrate.upgrade(database_of(roles, "migrator"))
    assert (holds(roles, Role.WORKER), holds(roles, Role.API), holds(roles, Role.READER)) == (True, True, False)
    (before,) = roles.rows("SELECT has_table_privilege(%s, 'fleet.lease', 'DELETE')", roles.names[Role.API])
    roles.apply()
    (after,) = roles.rows("SELECT has_table_privilege(%s, 'fleet.lease', 'DELETE')", roles.names[Role.API])
    assert (before, after) == ((True,), (False,))
    assert all(holds(roles, role) for role in grants.NEEDS)


def test_what_a_superuser_has_made_is_given_to_the_owner(server_url: str, template: str) -> None:
    with new_database(server_url, template) as url, house(url) as roles:
        assert roles.rows(OWNERS) == [(roles.names[Role.OWNER],)]
        assert roles.rows("SELECT count(*) FROM fleet.fleet_alembic_version") == [(1,)]


def test_an_administrator_who_is_no_superuser_can_apply_them(server_url: str, roles: House) -> None:
    """As at those who rent out servers: the owner of the database, who may make roles."""
    admin = f"{roles.prefix}_admin"
    other = House(re.sub("//[^@]*@", f"//{admin}:x@", roles.url), f"{roles.prefix}b")
    try:
        with psycopg.connect(roles.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA fleet CASCADE")
            connection.execute(f"CREATE ROLE {admin} LOGIN CREATEROLE PASSWORD 'x'".encode())
            connection.execute(f"ALTER DATABASE {connection.info.dbname} OWNER TO {admin}".encode())
        migrate.upgrade(Database(other.url, Settings()))
        other.apply()
        other.apply()
        assert other.rows(OWNERS) == [(other.names[Role.OWNER],)]
        migrate.upgrade(Database(other.url, Settings()))
    finally:
        with psycopg.connect(roles.url, autocommit=True) as connection:
            connection.execute(f"REASSIGN OWNED BY {admin} TO CURRENT_USER".encode())
            for name in (*other.names.values(), admin):
                connection.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())
