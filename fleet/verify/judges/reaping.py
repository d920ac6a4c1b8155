"""S5: the reaper never ends a live lease."""

from collections.abc import Iterator

from fleet.verify.reading import Change, Ending, History
from fleet.verify.rows import OVER, LeaseRow
from fleet.verify.verdict import Finding, Ruling

_CLOCKS_DIFFER_SECONDS = 60.0  # so much may a supervisor's clock be off


def judge(history: History) -> Ruling:
    """Look at every lease that was marked, and at every attempt that was taken away, in the journal."""
    marked = [each for each in history.lease_changes if each.new and each.old and _was_marked(each)]
    taken = [each for each in history.endings if each.outcome == "lost"]
    findings = [finding for change in marked for finding in _marked_alive(history, change)]
    findings += [finding for end in taken for finding in _taken_alive(history, end)]
    return Ruling(findings, len(marked), "leases that were reaped while the journal was kept")


def _was_marked(change: Change[LeaseRow]) -> bool:
    return bool(change.old and change.new and change.old.state not in OVER and change.new.state == "REAPED")


def _marked_alive(history: History, change: Change[LeaseRow]) -> Iterator[Finding]:
    lease = change.new
    if lease is None or lease.expires_at <= change.at or _died(history, lease, change.at):
        return
    if lease.renewed_at > change.at:
        return  # the database's clock was set back, and such a lease would outlive its holder by as much
    left = lease.expires_at - change.at
    words = f"lease {lease.id} of {lease.worker} was reaped with {left:.3f} s left, and nobody saw its process die"
    yield Finding(_held(history, lease.id), words)


def _died(history: History, lease: LeaseRow, at: float) -> bool:
    """Tell whether a supervisor had seen the process end: it may end the lease at once."""
    return any(
        line["pid"] == lease.pid and line["at"] <= at + _CLOCKS_DIFFER_SECONDS for line in history.said["child_ended"]
    )


def _held(history: History, lease: str) -> str | None:
    """Return a task that was held under this lease."""
    return next((each.new.id for each in history.claims if each.new and each.new.lease_id == lease), None)


def _taken_alive(history: History, end: Ending) -> Iterator[Finding]:
    """A sweep takes from leases that were over before its own transaction began: it then sees all that they held."""
    lease = end.old.lease_id or ""
    before = history.lease_before(lease, end.n)
    if before is None or before.new is None:
        return  # an orphan: there is no such lease any more
    what = f"attempt {end.old.attempt} was taken away"
    if before.new.state not in OVER:
        yield Finding(end.old.id, f"{what} while its lease {lease} of {before.new.worker} was {before.new.state}")
    elif before.txid == end.txid:
        yield Finding(end.old.id, f"{what} in the same transaction that ended its lease {lease}")
