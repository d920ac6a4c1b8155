"""The work: what is made of workers, leases, queues and dead letters."""

import shlex

from fleet.doctor.check import NAMES_SHOWN, Opinion, Verdict, some, together
from fleet.postgres import examine as ask


def workers(facts: list[ask.Workers]) -> Opinion:
    if not facts:
        return Opinion(Verdict.OK, "none is live")
    evidence = ", ".join(f"{each.number} live of version {each.version}" for each in facts)
    if len(facts) == 1:
        return Opinion(Verdict.OK, evidence)
    old = [lease for each in facts[1:] for lease in each.leases][:NAMES_SHOWN]
    words = f"version {facts[0].version} was started last: those of others have not been replaced"
    return Opinion(Verdict.WARNING, f"{evidence}; {words}", together(f"fleet worker drain {each}" for each in old))


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
    evidence = "; ".join(f"tasks are due in {some(names)}, {words}" for words, names in parts.items() if names)
    serve = shlex.join(["fleet", "worker", "run", *(f"--queue={name}" for name in unserved[:NAMES_SHOWN])])
    resume = [shlex.join(["fleet", "queue", "resume", name]) for name in paused[:NAMES_SHOWN]]
    if unserved:
        return Opinion(Verdict.PROBLEM, evidence, together([serve, *resume]))
    if paused:
        return Opinion(Verdict.WARNING, evidence, together(resume))
    return Opinion(Verdict.OK, f"tasks are due in {len(facts)}; all are served")


def dead_letters(count: int) -> Opinion:
    if not count:
        return Opinion(Verdict.OK, "none waits")
    number = f"more than {ask.COUNT_MAX:,}" if count > ask.COUNT_MAX else f"{count:,}"
    return Opinion(
        Verdict.WARNING, f"{number} wait for a person", "fleet dead list, then fleet dead requeue or fleet dead discard"
    )
