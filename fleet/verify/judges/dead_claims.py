"""S9: a dead lease claims nothing."""

from collections.abc import Iterator

from fleet.verify.reading import Change, History
from fleet.verify.rows import OVER, TaskRow
from fleet.verify.verdict import Finding, Ruling


def judge(history: History) -> Ruling:
    """Look at the lease of every claim as it was then."""
    over = sum(1 for each in history.lease_changes if each.new and each.new.state in OVER)
    findings = [finding for claim in history.claims for finding in _of_a_dead_lease(history, claim)]
    return Ruling(findings, over if history.claims else 0, "leases that were over while the journal was kept")


def _of_a_dead_lease(history: History, claim: Change[TaskRow]) -> Iterator[Finding]:
    row = claim.new
    if row is None or row.lease_id is None:
        return
    change = history.lease_before(row.lease_id, claim.n)
    if change is None:
        return  # granted before the journal began
    lease = change.new
    what = f"attempt {row.attempt} was claimed under lease {row.lease_id}"
    if lease is None:
        yield Finding(row.id, f"{what}, which is not on record any more")
    elif lease.state in OVER:
        yield Finding(row.id, f"{what} of {lease.worker}, which was {lease.state}")
    elif lease.expires_at <= claim.began:
        ago = claim.began - lease.expires_at
        yield Finding(row.id, f"{what} of {lease.worker}, which had expired {ago:.3f} s before the statement came in")
