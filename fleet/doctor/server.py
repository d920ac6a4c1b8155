"""The server and the way to it: what is made of their facts."""

import ipaddress

from fleet import __version__
from fleet.doctor.check import Opinion, Verdict, together, undo, where
from fleet.postgres import examine as ask
from fleet.postgres import mend, pooled
from fleet.postgres.upkeep import MayNotWatch

VERSION_MIN = 150000
SLOW_SECONDS = 0.05
AHEAD_SECONDS_MAX = 1.0
WORKER_CONNECTIONS = 6  # heartbeat, listen, claim, settle, maintenance; and the scout's, while another session is old
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")

# What ends the sessions of migrations, and of users who submit in transactions of their own, sooner than so many seconds.
# A worker asks for its own time-outs, but not for the last two, which newer servers have.
LIMITS_MIN = {
    "statement_timeout": (60, "it cuts off `fleet db upgrade`"),
    "lock_timeout": (1, "it fails submissions in transactions of your own that wait for another with their key"),
    "idle_in_transaction_session_timeout": (10, "it ends transactions of your own in which tasks are submitted"),
    "transaction_timeout": (60, "it cuts off `fleet db upgrade` and `submit_many`"),
    "idle_session_timeout": (600, "it ends sessions that listen while nothing happens"),
}


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
        evidence = f"this is the primary, but its sessions are read-only ({where(read_only)})"
        return Opinion(Verdict.PROBLEM, evidence, undo(read_only, "off"))
    return Opinion(Verdict.OK, "this is the primary, and can be written to")


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
    evidence = "; ".join(f"{each.name} = off ({where(each)}): {lost[each.name]}" for each in off)
    return Opinion(Verdict.PROBLEM, evidence, together(undo(each, "on") for each in off))


def standbys(facts: ask.Standbys) -> Opinion:
    streaming = f"{facts.number} stream"
    if not facts.awaited:
        loss = ", and no commit waits for one: a failover may lose the last commits" if facts.number else ""
        return Opinion(Verdict.OK, f"{streaming}{loss}")
    evidence = f"commits wait for {facts.awaited}; {streaming}"
    if facts.synchronous:
        return Opinion(Verdict.OK, f"{evidence}, {facts.synchronous} of them are waited for")
    if facts.number and not facts.shown:
        raise MayNotWatch
    words = "none of them is waited for: no commit ends until one comes"
    return Opinion(Verdict.PROBLEM, f"{evidence}, {words}", mend.no_standbys())


def pooler(facts: tuple[pooled.Way, bool]) -> Opinion:
    way, prepares = facts
    if not way.pooled:
        return Opinion(Verdict.OK, "none: sessions are the server's own")
    if not way.shared:
        return Opinion(Verdict.OK, "one in session mode: each session keeps a backend of the server to itself")
    evidence = "one in transaction mode: two sessions were given the same backend of the server in turn"
    if not way.refuses_prepared:
        return Opinion(Verdict.OK, f"{evidence}; it knows prepared statements")
    if not prepares:
        return Opinion(Verdict.OK, f"{evidence}; it knows no prepared statements, and none are asked of it")
    words = "it mixes up their prepared statements, and workers need them. Or use session mode (pool_mode = session)"
    return Opinion(Verdict.PROBLEM, f"{evidence}; {words}", "export FLEET_PREPARED_STATEMENTS=off")


def time_outs(facts: tuple[list[ask.Setting], dict[str, str]]) -> Opinion:
    """Judge what sessions have that ask for nothing. What a worker asks for may be the role's: a pooler forgets asking."""
    found, asked = facts
    short = [
        each
        for each in found
        if 0 < int(each.value) < LIMITS_MIN[each.name][0] * 1000 and each.value != asked.get(each.name)
    ]
    if not short:
        return Opinion(Verdict.OK, ", ".join(f"{each.name} = {each.value} ms" for each in found))
    evidence = "; ".join(f"{each.name} = {each.value} ms ({where(each)}): {LIMITS_MIN[each.name][1]}" for each in short)
    return Opinion(Verdict.WARNING, evidence, together(undo(each, "0") for each in short))


def isolation(facts: ask.Isolation) -> Opinion:
    ours, theirs = facts.ours, facts.theirs
    evidence = f"the fleet's sessions: {ours.value}; others by default: {theirs.value} ({where(theirs)})"
    if ours.value != "read committed":
        words = "claims and reaping need read committed, and something on the way drops what sessions ask for"
        return Opinion(Verdict.PROBLEM, f"{evidence}; {words}", undo(theirs, "read committed"))
    if theirs.value != "read committed":
        words = "each submission in a transaction of such a session wakes the workers, whether they sleep or not"
        return Opinion(Verdict.WARNING, f"{evidence}; {words}", undo(theirs, "read committed"))
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
            "Let FLEET_LISTEN_URL name the same database past the pooler: only what listens goes that way"
        )
        return Opinion(Verdict.WARNING, evidence)
    return Opinion(Verdict.OK, f"one came within {seconds * 1000:.1f} ms")


def encryption(facts: ask.Encryption) -> Opinion:
    if facts.encrypted:
        checked = facts.sslmode in ("verify-ca", "verify-full")
        words = "was checked" if checked else "was not checked: whoever sits in between can read and change everything"
        return Opinion(Verdict.OK, f"encrypted; sslmode = {facts.sslmode}: the server's certificate {words}")
    if _stays_here(facts.address):
        return Opinion(Verdict.OK, "not encrypted, and it does not leave this machine")
    evidence = f"not encrypted, and {facts.address} is another machine: arguments and results can be read on the way"
    return Opinion(Verdict.WARNING, evidence, mend.encrypted())


def _stays_here(address: str) -> bool:
    """Tell whether it is a socket of this machine, or a loopback address."""
    if address.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


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
