"""Databases for tests: a server, a migrated template on it, and a copy of that for each test."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from fleet.config import Settings
from fleet.embedded import temporary
from fleet.postgres import migrate, scratch
from fleet.postgres.database import Database

VARIABLE = "FLEET_TEST_DATABASE_URL"
_SERVER = {"fsync": "off", "max_connections": "200", "shared_buffers": "128MB"}


@contextmanager
def server(settings: Mapping[str, str] = _SERVER) -> Iterator[str]:
    """Lend a server on which databases may be created: the one that FLEET_TEST_DATABASE_URL names, or an embedded one.

    `settings` are PostgreSQL's, for the embedded one.
    """
    given = os.environ.get(VARIABLE)
    if given:
        yield given
        return
    with temporary(settings) as started:
        yield started.url


@contextmanager
def template(server_url: str) -> Iterator[str]:
    """Lend the name of a database with the schema and nothing else."""
    with scratch.new_database(server_url, "template0", "ENCODING 'UTF8'") as url:
        migrate.upgrade(Database(url, Settings()))
        yield urlsplit(url).path.removeprefix("/")
