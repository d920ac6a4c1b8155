"""The tables: what is made of their shape, of who may use them, and of how they are kept small."""

from fleet.doctor.check import Opinion, Verdict, some, together, undo, where
from fleet.errors import SchemaMismatch
from fleet.postgres import grants, mend, shape, upkeep
from fleet.postgres.examine import Setting
from fleet.postgres.grants import Role

OLD_SECONDS = 300.0
VERY_OLD_SECONDS = 3600.0
TRANSACTIONS_MAX = 1_000_000
DEAD_FACTOR = 10  # so many times what autovacuum waits for
DEAD_ROWS_MIN = 10_000


def schema(facts: str | SchemaMismatch) -> Opinion:
    if isinstance(facts, str):
        return Opinion(Verdict.OK, f"revision {facts}")
    words = str(facts)
    return Opinion(
        Verdict.PROBLEM, words, "fleet db upgrade" if "fleet db upgrade" in words else "pip install -U pgfleet"
    )


def objects(facts: shape.Shape | SchemaMismatch) -> Opinion:
    if isinstance(facts, SchemaMismatch):
        return Opinion(Verdict.UNKNOWN, "cannot be compared with those of another revision")
    wrong = shape.differences(facts)
    if not wrong:
        return Opinion(Verdict.OK, f"all {len(shape.wanted())} parts of the schema are as the migrations made them")
    evidence = some([
        f"{each.kind} {each.name or each.table}{f' of {each.table}' if each.name and each.table else ''} "
        + ("is missing" if each.found is None else f"is changed: {each.found or 'none'}")
        for each in wrong
    ])  # fmt: skip
    mends = (mend.part(*each[:4], missing=each.found is None) for each in wrong)
    return Opinion(Verdict.PROBLEM, evidence, together(mends))


def privileges(facts: tuple[str, bool, frozenset[grants.Right]]) -> Opinion:
    """Judge a role by the jobs that it has begun to be let do: who may only read is well off as a reader."""
    role, enters, held = facts
    missing = {job: needs - held for job, needs in grants.NEEDS.items()}
    able = [job for job in missing if not missing[job]] if enters else []
    begun = [job for job in missing if job not in able and (job is Role.READER or grants.distinctive(job) & held)]
    if begun:
        lacks = frozenset[grants.Right]().union(*(missing[job] for job in begun))
        parts = [*([] if enters else ["USAGE on the schema"]), *(f"{each} on {each.table}" for each in sorted(lacks))]
        evidence = f"role {role} lacks what the {' and the '.join(begun)} needs: {some(parts)}"
        mends = [*([] if enters else [mend.enter(role)]), *grants.grants_of(lacks, role)]
        return Opinion(Verdict.PROBLEM, evidence, together(mends))
    return Opinion(Verdict.OK, f"role {role} may do all that a fleet's {', '.join(able)} needs")


def tables(unlogged: list[str]) -> Opinion:
    if not unlogged:
        return Opinion(Verdict.OK, "every table outlives a crash of the server")
    evidence = f"unlogged: {', '.join(unlogged)}: a crash of the server empties what is"
    return Opinion(Verdict.PROBLEM, evidence, together(map(mend.logged, unlogged)))


def autovacuum(facts: tuple[list[Setting], list[upkeep.Upkeep]]) -> Opinion:
    settings, found = facts
    off = [each for each in settings if each.value == "off"]
    kept_off = [each for each in found if not each.enabled]
    full = [each for each in found if each.dead > max(DEAD_FACTOR * each.threshold, DEAD_ROWS_MIN)]
    if not (off or kept_off or full):
        most = max(found, key=lambda each: each.dead, default=None)
        return Opinion(Verdict.OK, f"{most.dead:,} dead rows at most, in {most.table}" if most else "no table")
    evidence = "; ".join([
        *(f"{each.name} = off ({where(each)}): dead rows stay everywhere" for each in off),
        *(f"it is kept off {each.table}" for each in kept_off),
        *(f"{each.table} has {each.dead:,} dead rows, and it comes from {each.threshold:,.0f} on" for each in full),
    ])  # fmt: skip
    tended = {each.table: each for each in (*kept_off, *full)}.values()
    mends = [
        *(undo(each, "on") for each in off),
        *(mend.keep_small(each.table, enabled=each.enabled) for each in tended),
    ]
    return Opinion(Verdict.PROBLEM if off or kept_off else Verdict.WARNING, evidence, together(mends))


def vacuum(facts: list[upkeep.Holder]) -> Opinion:
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


def _held(holder: upkeep.Holder) -> str:
    age = f"{holder.transactions or 0:,} transactions" if holder.seconds is None else f"{holder.seconds:.0f} s"
    return f"{holder.kind} {holder.name}, {age} old"
