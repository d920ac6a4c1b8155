"""The roles of `fleet db grants` on a database, and a user that may log in for each of them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import psycopg

from fleet.postgres.database import identifier
from fleet.postgres.grants import Role, statements

NOBODY = "nobody"  # who may log in and was granted nothing


@dataclass(frozen=True)
class House:
    """A database with the roles: `url` is the administrator's, `names` are the roles', all of this house alone."""

    url: str
    prefix: str

    @property
    def names(self) -> dict[Role, str]:
        return {role: f"{self.prefix}_{role}" for role in Role}

    def url_of(self, who: str) -> str:
        """The URL of the database for a user that does this job."""
        return re.sub("//[^@]*@", f"//{self.prefix}_{who}_user:x@", self.url)

    def apply(self, url: str | None = None) -> None:
        """Do what an administrator does with the printed statements."""
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            connection.execute(statements(self.names).encode())

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode(), values).fetchall()


@contextmanager
def house(url: str) -> Iterator[House]:
    """Apply the roles to a database, with names of their own; roles and users are gone afterwards."""
    lent = House(url, f"r{uuid4().hex[:8]}")
    users = [f"{lent.prefix}_{who}_user" for who in (*Role, NOBODY)]
    with psycopg.connect(url, autocommit=True) as connection:
        lent.apply()
        for user in users:
            connection.execute(f"CREATE ROLE {identifier(user)} LOGIN PASSWORD 'x'".encode())
        for role in Role:
            connection.execute(
                f"GRANT {identifier(lent.names[role])} TO {identifier(f'{lent.prefix}_{role}_user')}".encode()
            )
        try:
            yield lent
        finally:
            for gone in map(identifier, (*users, *lent.names.values())):
                connection.execute(f"DROP OWNED BY {gone} CASCADE; DROP ROLE {gone}".encode())
