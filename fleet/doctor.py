"""Examine a database: what is asked stands in postgres/examine.py, what is made of it here. Changes nothing."""

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError

from fleet import __version__
from fleet.errors import SchemaMismatch
from fleet.postgres import examine as ask
from fleet.postgres import mend, migrate
from fleet.postgres.database import Database

Facts = TypeVar("Facts")

VERSION_MIN = 150000
SLOW_SECONDS = 0.05
AHEAD_SECONDS_MAX = 1.0
OLD_SECONDS = 300.0
VERY_OLD_SECONDS = 3600.0
TRANSACTIONS_MAX = 1_000_000
WORKER_CONNECTIONS = 6  # heartbeat, listen, claim, settle, maintenance; and the scout's, while another session is old
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
_NAMES_SHOWN = 3


class Verdict(StrEnum):
    """What a finding means. UNKNOWN is never OK: it could not be examined."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


class Opinion(NamedTuple):
    """What is made of the facts: `evidence` holds them, with their units; `mend` is a statement or a command."""

    verdict: Verdict
    evidence: str
    mend: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    verdict: Verdict
    evidence: str
    mend: str | None


@dataclass(frozen=True, slots=True)
class Check(Generic[Facts]):
    """A check: its name, the question for its facts, and what is made of them."""

    name: str
    question: Callable[[ask.Site], Facts]
    judge: Callable[[Facts], Opinion]


def examine(database: Database, clock: Callable[[], float] = time.time) -> list[Finding]:
    """Return a finding for each check; for the first alone where the database cannot be reached."""
    try:
        with ask.visit(database, clock) as site:
            return [_finding(check, site) for check in CHECKS]
    except psycopg.OperationalError as error:
        return [
            Finding(CHECKS[0].name, Verdict.PROBLEM, f"{database.address} cannot be reached: {_words(error)}", None)
        ]


def reach(site: ask.Site) -> Opinion:
    quickest = min(trip.seconds for trip in site.round_trips)
    evidence = f"{site.database.address} answers in {quickest * 1000:.1f} ms"
    if quickest > SLOW_SECONDS:
        return Opinion(Verdict.WARNING, f"{evidence}; every claim and every end of a task waits for that")
    return Opinion(Verdict.OK, evidence)


def server(facts: ask.Server) -> Opinion:
    evidence = f"PostgreSQL {facts.version}, pgfleet {__version__}"
    if facts.number < VERSION_MIN:
        return Opinion(Verdict.PROBLEM, f"{evidence}; PostgreSQL {VERSION_MIN // 10_000} or newer is needed")
    return Opinion(Verdict.OK, evidence)


def primary(facts: tuple[ask.Server, ask.Setting]) -> Opinion:
    server, read_only = facts
    if server.in_recovery:
        return Opinion(Verdict.PROBLEM, "this is a standby: nothing can be written. Name the primary")
    if read_only.value == "on":
        evidence = f"this is the primary, but its sessions are read-only ({_where(read_only)})"
        return Opinion(Verdict.PROBLEM, evidence, _undo(read_only, "off"))
    return Opinion(Verdict.OK, "this is the primary, and can be written to")


def schema(facts: str | SchemaMismatch) -> Opinion:
    if isinstance(facts, str):
        return Opinion(Verdict.OK, f"revision {facts}")
    words = str(facts)
    return Opinion(
        Verdict.PROBLEM, words, "fleet db upgrade" if "fleet db upgrade" in words else "pip install -U pgfleet"
    )


def clocks(site: ask.Site) -> Opinion:
    trip = min(site.round_trips, key=lambda trip: trip.seconds)
    ahead = (trip.sent + trip.answered) / 2 - trip.there
    evidence = (
        f"the clock of this machine is {abs(ahead) * 1000:.1f} ms {'ahead of' if ahead > 0 else 'behind'} "
        f"the database's (± {trip.seconds * 500:.1f} ms); no lease is judged by it"
    )
    if abs(ahead) - trip.seconds / 2 > AHEAD_SECONDS_MAX:
        return Opinion(Verdict.WARNING, f"{evidence}, but the times in logs do not compare")
    return Opinion(Verdict.OK, evidence)


def durability(facts: list[ask.Setting]) -> Opinion:
    lost = {
        "fsync": "a crash of the machine may damage the whole database",
        "full_page_writes": "a crash of the machine may leave half-written pages",
        "synchronous_commit": "a crash of the server may undo the last commits: tasks are lost, or run twice",
    }
    off = [each for each in facts if each.value == "off"]
    if not off:
        return Opinion(Verdict.OK, ", ".join(f"{each.name} = {each.value}" for each in facts))
    evidence = "; ".join(f"{each.name} = off ({_where(each)}): {lost[each.name]}" for each in off)
    return Opinion(Verdict.PROBLEM, evidence, _together(_undo(each, "on") for each in off))


def tables(unlogged: list[str]) -> Opinion:
    if not unlogged:
        return Opinion(Verdict.OK, "every table outlives a crash of the server")
    evidence = f"unlogged: {', '.join(unlogged)}: a crash of the server empties what is"
    return Opinion(Verdict.PROBLEM, evidence, _together(map(mend.logged, unlogged)))


def isolation(facts: ask.Isolation) -> Opinion:
    ours, theirs = facts.ours, facts.theirs
    evidence = f"the fleet's sessions: {ours.value}; others by default: {theirs.value} ({_where(theirs)})"
    if ours.value != "read committed":
        words = "claims and reaping need read committed, and something on the way drops what sessions ask for"
        return Opinion(Verdict.PROBLEM, f"{evidence}; {words}", _undo(theirs, "read committed"))
    if theirs.value != "read committed":
        words = "each submission in a transaction of such a session wakes the workers, whether they sleep or not"
        return Opinion(Verdict.WARNING, f"{evidence}; {words}", _undo(theirs, "read committed"))
    return Opinion(Verdict.OK, evidence)


def session(facts: ask.Session) -> Opinion:
    missing = {name: value for name, value in facts.asked.items() if facts.found.get(name) != value}
    if not missing:
        limits = ", ".join(f"{name} = {value} ms" for name, value in facts.asked.items() if name.endswith("timeout"))
        return Opinion(Verdict.OK, f"sessions have what they ask for: {limits}")
    evidence = ", ".join(f"{name} is {facts.found.get(name)}, not {value}" for name, value in missing.items())
    words = "something on the way, perhaps a pooler, drops what sessions ask for at their start"
    return Opinion(Verdict.PROBLEM, f"{evidence}; {words}", mend.session(facts.role, missing))


def notifications(seconds: float | None) -> Opinion:
    if seconds is None:
        evidence = (
            f"none came within {ask.NOTIFICATION_SECONDS:g} s: workers must poll, and start tasks later. "
            "Connect them to the server itself, or through a pooler in session mode"
        )
        return Opinion(Verdict.WARNING, evidence)
    return Opinion(Verdict.OK, f"one came within {seconds * 1000:.1f} ms")


def connections(facts: ask.Connections) -> Opinion:
    whose, most, free = facts.least
    need = facts.workers * WORKER_CONNECTIONS
    evidence = (
        f"{free} of {most} that the {whose} allows are free; each worker takes {WORKER_CONNECTIONS}, "
        f"and {facts.workers} are live"
    )
    wanted = facts.server_used + need + 2 * WORKER_CONNECTIONS + 100
    undo = mend.connections(whose, wanted, database=facts.database, role=facts.role)
    if need > most:
        return Opinion(Verdict.PROBLEM, f"{evidence}: they do not fit", undo)
    if free < WORKER_CONNECTIONS:
        return Opinion(Verdict.WARNING, f"{evidence}: one more would find no room", undo)
    return Opinion(Verdict.OK, evidence)


def leases(facts: ask.Leases) -> Opinion:
    if not facts.overdue:
        return Opinion(Verdict.OK, f"none is overdue, {facts.good} are good")
    evidence = f"{facts.overdue} overdue, the longest for {facts.longest_seconds:.1f} s; {facts.good} are good"
    if facts.forgotten:
        return Opinion(Verdict.PROBLEM, f"{evidence}; no worker settles what they hold", "fleet worker run")
    return Opinion(Verdict.WARNING, f"{evidence}; any worker that runs settles what they hold", "fleet worker run")


def queues(facts: list[ask.WaitingQueue]) -> Opinion:
    unserved = [each.name for each in facts if not each.served and not each.paused]
    paused = [each.name for each in facts if each.paused]
    parts = {"served by no worker": unserved, "paused": paused}
    evidence = "; ".join(f"tasks are due in {_some(names)}, {words}" for words, names in parts.items() if names)
    serve = shlex.join(["fleet", "worker", "run", *(f"--queue={name}" for name in unserved[:_NAMES_SHOWN])])
    resume = [shlex.join(["fleet", "queue", "resume", name]) for name in paused[:_NAMES_SHOWN]]
    if unserved:
        return Opinion(Verdict.PROBLEM, evidence, _together([serve, *resume]))
    if paused:
        return Opinion(Verdict.WARNING, evidence, _together(resume))
    return Opinion(Verdict.OK, f"tasks are due in {len(facts)}; all are served")


def dead_letters(count: int) -> Opinion:
    if not count:
        return Opinion(Verdict.OK, "none waits")
    number = f"more than {ask.COUNT_MAX:,}" if count > ask.COUNT_MAX else f"{count:,}"
    return Opinion(
        Verdict.WARNING, f"{number} wait for a person", "fleet dead list, then fleet dead requeue or fleet dead discard"
    )


def vacuum(facts: list[ask.Holder]) -> Opinion:
    if not facts:
        return Opinion(Verdict.OK, "nothing holds it back")
    oldest = facts[0]
    heavy = max(facts, key=lambda each: each.transactions or 0)
    evidence = f"the oldest transaction is {_held(oldest)}"
    if (oldest.seconds or 0) > OLD_SECONDS:
        verdict = Verdict.PROBLEM if (oldest.seconds or 0) > VERY_OLD_SECONDS else Verdict.WARNING
        return Opinion(verdict, f"{evidence}: dead rows stay", mend.hold(oldest.kind, oldest.name))
    if (heavy.transactions or 0) > TRANSACTIONS_MAX:
        return Opinion(Verdict.WARNING, f"{_held(heavy)}: dead rows stay", mend.hold(heavy.kind, heavy.name))
    return Opinion(Verdict.OK, evidence)


# In the order in which they are told. The facts of each are its own, so that one which fails leaves the others alone.
CHECKS: list[Check[Any]] = [
    Check("reach", lambda site: site, reach),
    Check("server", ask.server, server),
    Check("primary", lambda site: (ask.server(site), _setting(site, "default_transaction_read_only")), primary),
    Check("schema", lambda site: _revision(site.database), schema),
    Check("clocks", lambda site: site, clocks),
    Check("durability", lambda site: ask.settings(site.connection, *DURABLE), durability),
    Check("tables", ask.unlogged, tables),
    Check("isolation", ask.isolation, isolation),
    Check("session", ask.session, session),
    Check("notifications", ask.notification, notifications),
    Check("connections", ask.connections, connections),
    Check("leases", ask.leases, leases),
    Check("queues", ask.queues, queues),
    Check("dead letters", ask.dead_letters, dead_letters),
    Check("vacuum", ask.holders, vacuum),
]


def _finding(check: Check[Any], site: ask.Site) -> Finding:
    try:
        opinion = check.judge(check.question(site))
    except ask.MayNotWatch:
        words = f"role {site.role} is not shown what other sessions do"
        opinion = Opinion(Verdict.UNKNOWN, words, mend.let_watch(site.role))
    except (psycopg.Error, DBAPIError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if site.connection.broken:
            raise psycopg.OperationalError(_words(error)) from error
        forbidden = isinstance(cause, psycopg.errors.InsufficientPrivilege)
        opinion = Opinion(Verdict.UNKNOWN, _words(cause), mend.let_read(site.role) if forbidden else None)
    return Finding(check.name, *opinion)


def _revision(database: Database) -> str | SchemaMismatch:
    try:
        return migrate.check(database)
    except SchemaMismatch as error:
        return error


def _setting(site: ask.Site, name: str) -> ask.Setting:
    return ask.settings(site.connection, name)[0]


def _where(setting: ask.Setting) -> str:
    return f"source: {setting.source}"


def _undo(setting: ask.Setting, wanted: str) -> str | None:
    return mend.setting(setting.name, wanted, source=setting.source, database=setting.database, role=setting.role)


def _together(mends: Iterable[str | None]) -> str | None:
    return "; ".join(each for each in mends if each) or None


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"{shown} and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else shown


def _held(holder: ask.Holder) -> str:
    age = f"{holder.transactions or 0:,} transactions" if holder.seconds is None else f"{holder.seconds:.0f} s"
    return f"{holder.kind} {holder.name}, {age} old"


def _words(error: BaseException | None) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
