"""Each step of the demo in plain words. Pure: the figures come with the step."""

from collections.abc import Iterable
from datetime import timedelta

from fleet.demo.questions import Held, Holder
from fleet.demo.report import Facts, Report
from fleet.demo.steps import DatabaseReady, Drained, Finished, Killed, Settled, Step, Submitted, WorkersReady

_DOUBTS_SHOWN = 8


def explain(step: Step) -> list[str]:
    """Return the lines that tell what has just happened; those after the first are indented where they belong to it."""
    match step:
        case DatabaseReady():
            lines = ["The database is ready: the tables of a fleet, and nothing in them."]
        case WorkersReady(workers, ttl, slots):
            lines = [
                f"{len(workers)} workers run, each a process of its own: {_join(_named(each) for each in workers)}.",
                f"  Each runs {slots} tasks at a time and holds a lease of {_seconds(ttl)}, renewed all the time.",
            ]
        case Submitted(texts, tasks, outbox):
            lines = [
                f"{tasks} tasks are in the queue, two for each of {texts} texts:",
                "  analyze counts words. Doing it twice is harmless, so it is declared idempotent.",
                "  publish stands for a call that costs money. Doing it twice is not harmless.",
                f"    It leaves its mark outside the database, in {outbox}",
            ]
        case Killed(victim, held):
            lines = [
                f"{_named(victim)} was killed by SIGKILL while it was running {_kinds(held)}.",
                "  It could tell nobody. All that the others see is a lease that is not renewed any more.",
            ]
        case Settled():
            lines = _settled(step)
        case Finished(facts):
            lines = _finished(facts)
        case Drained(exit_codes):
            drained = [name for name, code in exit_codes.items() if code == 0]
            lines = [f"{_join(drained) or 'Nobody'} got SIGTERM, finished and left with exit code 0."]
    return lines


def conclude(report: Report) -> list[str]:
    """Return the last lines: the figures, and what is wrong if something is."""
    figures = {
        "tasks": report.tasks,
        "succeeded": report.succeeded,
        "failed": f"{report.failed} (lease_expired: {report.lease_expired})",
        "put back and repeated": report.requeued,
        "lost": report.lost,
        "published twice": report.published_twice,
        "recovery": f"{report.recovery_seconds:.1f} s after the kill",
        "the whole demo": f"{report.seconds:.1f} s",
    }
    width = max(map(len, figures))
    lines = [f"{name:<{width}}  {value}" for name, value in figures.items()]
    return (
        lines + ([""] if report.broken else []) + [f"BROKEN: this should hold: {promise}" for promise in report.broken]
    )


def _settled(step: Settled) -> list[str]:
    repeatable = [task for task in step.held if task.failure_code is None]
    failed = [task for task in step.held if task.failure_code is not None]
    accuser = _join(step.accusers) or "another worker"
    lines = [
        f"{_seconds(step.after)} after the kill its lease had run out: {accuser} noticed, and its tasks were settled:",
        f"  {_kinds(repeatable)} went back into the queue, to be repeated by others.",
    ]
    if failed:
        lines.append(f"  {_kinds(failed)} became FAILED, {_codes_of(failed)}: nobody knows how far they got.")
    return lines


def _finished(facts: Facts) -> list[str]:
    counts, again = facts.counts, [task for task in facts.repeatable if task.state == "SUCCEEDED"]
    lines = [
        f"Every task has ended: {counts.succeeded} succeeded, {counts.failed} failed."
        if counts.terminal == facts.submitted
        else f"Not every task has ended: {counts.terminal} of {facts.submitted}."
    ]
    if again:
        attempts = sorted({task.attempt for task in again})
        lines.append(f"  The {_kinds(again)} put back succeeded at attempt {_join(map(str, attempts))}.")
    lines += _doubts(facts)
    if counts.terminal == facts.submitted == counts.succeeded + counts.failed:
        lines.append(
            f"Nothing was lost: {facts.submitted} submitted = {counts.succeeded} done + {counts.failed} for a person."
        )
    return lines


def _doubts(facts: Facts) -> list[str]:
    """Say what a person finds who looks into the outside world, which the fleet cannot."""
    doubts = facts.doubts
    if not doubts:
        return []
    done = sum(1 for doubt in doubts if doubt.in_outbox)
    lines = [f"  Of the {_kinds(facts.others)} that failed, {done} had published, as the file shows:"]
    for doubt in doubts[:_DOUBTS_SHOWN]:
        found = (
            "is in the file: `fleet dead discard`" if doubt.in_outbox else "is not in the file: `fleet dead requeue`"
        )
        lines.append(f"    {doubt.title} {found}")
    if len(doubts) > _DOUBTS_SHOWN:
        lines.append(f"    and {len(doubts) - _DOUBTS_SHOWN} more")
    lines.append("  No program can know that for any service, so a person decides: `fleet dead list`.")
    return lines


def _named(holder: Holder) -> str:
    return f"{holder.worker} (pid {holder.pid})"


def _kinds(held: Iterable[Held]) -> str:
    """Return `3 analyze and 2 publish tasks`."""
    names = [task.name for task in held]
    parts = [f"{names.count(name)} {name}" for name in sorted(set(names))]
    return f"{_join(parts) or 'no'} {'task' if len(names) == 1 else 'tasks'}"


def _codes_of(held: Iterable[Held]) -> str:
    return _join(sorted({task.failure_code or "" for task in held}))


def _seconds(duration: timedelta) -> str:
    return f"{round(duration.total_seconds(), 1):g} s"


def _join(words: Iterable[str]) -> str:
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last
