"""All checks, in the order in which they are told, and how they are carried out."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from fleet.doctor import server, tables, work
from fleet.doctor.check import Check, Finding, Opinion, Verdict, together
from fleet.errors import SchemaMismatch, first_line
from fleet.postgres import examine as ask
from fleet.postgres import grants, mend, migrate, pooled, shape, upkeep
from fleet.postgres.database import Database


def examine(database: Database, clock: Callable[[], float] = time.time) -> list[Finding]:
    """Return a finding for each check; for the first alone where the database cannot be reached."""
    try:
        with ask.visit(database, clock) as site:
            return [_finding(check, site) for check in CHECKS]
    except psycopg.OperationalError as error:
        words = f"{database.address} cannot be reached: {first_line(error)}"
        return [Finding(CHECKS[0].name, Verdict.PROBLEM, words, None)]


def _finding(check: Check[Any], site: ask.Site) -> Finding:
    try:
        opinion = check.judge(check.question(site))
    except upkeep.MayNotWatch:
        hidden = f"role {site.role} is not shown what other sessions do"
        opinion = Opinion(Verdict.UNKNOWN, hidden, mend.let_watch(site.role))
    except (psycopg.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if site.connection.broken:
            raise psycopg.OperationalError(first_line(error)) from error
        forbidden = isinstance(cause, psycopg.errors.InsufficientPrivilege)
        opinion = Opinion(Verdict.UNKNOWN, first_line(cause), _let_read(site.role) if forbidden else None)
    return Finding(check.name, *opinion)


def _let_read(role: str) -> str | None:
    return together([mend.enter(role), *grants.grants_of(grants.NEEDS[grants.Role.READER], role)])


def _revision(database: Database) -> str | SchemaMismatch:
    try:
        return migrate.check(database)
    except SchemaMismatch as error:
        return error


def _setting(site: ask.Site, name: str) -> ask.Setting:
    return ask.settings(site.connection, name)[0]


def _limits(site: ask.Site) -> tuple[list[ask.Setting], dict[str, str]]:
    return ask.limits(site, *server.LIMITS_MIN), site.database.session()


def _shape(site: ask.Site) -> shape.Shape | SchemaMismatch:
    revision = _revision(site.database)
    return revision if isinstance(revision, SchemaMismatch) else shape.found(site.connection)


def _upkeep(site: ask.Site) -> tuple[list[ask.Setting], list[upkeep.Upkeep]]:
    return ask.settings(site.connection, "autovacuum", "track_counts"), upkeep.upkeep(site.connection)


# The facts of each check are its own, so that one which fails leaves the others alone.
CHECKS: list[Check[Any]] = [
    Check("reach", lambda site: site, server.reach),
    Check("server", ask.server, server.server),
    Check("primary", lambda site: (ask.server(site), _setting(site, "default_transaction_read_only")), server.primary),
    Check("clocks", lambda site: site, server.clocks),
    Check(
        "pooler", lambda site: (pooled.way(site.database), site.database.settings.prepared_statements), server.pooler
    ),
    Check("session", ask.session, server.session),
    Check("time-outs", _limits, server.time_outs),
    Check("isolation", ask.isolation, server.isolation),
    Check("notifications", ask.notification, server.notifications),
    Check("encryption", ask.encryption, server.encryption),
    Check("connections", ask.connections, server.connections),
    Check("durability", lambda site: ask.settings(site.connection, *server.DURABLE), server.durability),
    Check("standbys", ask.standbys, server.standbys),
    Check("schema", lambda site: _revision(site.database), tables.schema),
    Check("objects", _shape, tables.objects),
    Check("privileges", lambda site: (site.role, *grants.held(site.connection)), tables.privileges),
    Check("tables", ask.unlogged, tables.tables),
    Check("autovacuum", _upkeep, tables.autovacuum),
    Check("vacuum", lambda site: upkeep.holders(site.connection), tables.vacuum),
    Check("workers", ask.workers, work.workers),
    Check("leases", ask.leases, work.leases),
    Check("queues", ask.queues, work.queues),
    Check("dead letters", ask.dead_letters, work.dead_letters),
]
