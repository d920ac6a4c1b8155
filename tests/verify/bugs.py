"""Bugs as changes to the text of statements: which, what becomes of it, the promise that breaks, and to which task."""

from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

from fleet.postgres import cancel, claim, dead_letter, expire, heartbeat, prune, reap, settle, submit
from fleet.postgres.database import Statement


class Bug(NamedTuple):
    """`changes`: text → what stands in its place, everywhere in the statement. `task`: its name in the scenario."""

    what: str
    module: ModuleType
    statement: str
    changes: Mapping[str, str]
    breaks: str
    task: str

    @property
    def scene(self) -> str:
        return self.task.partition("/")[0]

    def patched(self) -> Statement:
        """Return the statement with the bug in it."""
        text: str = getattr(self.module, self.statement).text
        for right, wrong in self.changes.items():
            assert right in text, f"{self.statement} does not hold {right!r}"
            text = text.replace(right, wrong)
        return Statement(text)


FENCE = "coalesce(found.state = 'RUNNING' AND found.attempt = input.attempt AND found.lease_id = :lease::uuid, false) AS ours"
NOT_WRITTEN = {"FROM judged\n  ORDER BY judged.id\n)": "FROM judged\n  WHERE false\n  ORDER BY judged.id\n)"}
ONE_STATEMENT = """, taken AS (
  UPDATE fleet.task
  SET state = 'QUEUED', lease_id = NULL, losses = losses + 1
  FROM marked
  WHERE task.lease_id = marked.id
  RETURNING task.id, task.attempt, marked.id AS lease
), told AS (
  INSERT INTO fleet.attempt (task_id, attempt, lease_id, outcome)
  SELECT id, attempt, lease, 'lost' FROM taken
)
SELECT id FROM marked"""

BUGS = [
    Bug("a success is settled without a fence", settle, "SUCCEED",
        {FENCE: "found.state IS NOT NULL AS ours"}, "S4", "zombie"),
    Bug("a success is settled by the task's id and state", settle, "SUCCEED",
        {FENCE: "coalesce(found.state = 'RUNNING', false) AS ours"}, "S2", "zombie"),
    Bug("an end other than success is settled without a fence", settle, "GIVE_BACK",
        {FENCE: "found.state IS NOT NULL AS ours"}, "S2", "second_word"),
    Bug("an end other than success leaves a task that has ended open", settle, "GIVE_BACK",
        {FENCE: "found.state IS NOT NULL AS ours"}, "S10", "second_word"),
    Bug("a late report is not kept", settle, "RECORD_LATE",
        {"FROM input\n  ORDER BY id, attempt": "FROM input\n  WHERE false\n  ORDER BY id, attempt"}, "S4", "zombie"),
    Bug("a late report is not counted", settle, "RECORD_LATE",
        {"GROUP BY input.queue": "WHERE false GROUP BY input.queue"}, "S16", "zombie"),
    Bug("no history of an end is written", settle, "GIVE_BACK", NOT_WRITTEN, "S11", "retry"),
    Bug("a dead letter is not counted", settle, "GIVE_BACK",
        {"WHERE state = 'FAILED'\n": "WHERE false\n"}, "S16", "dead"),
    Bug("a release is charged to the task", settle, "GIVE_BACK",
        {"(judged.outcome = 'error')::int": "(judged.outcome <> 'cancelled')::int"}, "S18", "released"),
    Bug("a failure is not charged", settle, "GIVE_BACK",
        {"task.failures + (judged.outcome = 'error')::int": "task.failures"}, "S6", "retry"),
    Bug("leases are marked before their time is over", reap, "MARK",
        {"\n    AND (expires_at <= clock_timestamp() OR renewed_at > clock_timestamp())": ""},
        "S5", "live"),
    Bug("leases are marked and swept by one statement", reap, "MARK",
        {"\nSELECT id FROM marked": ONE_STATEMENT}, "S5", "zombie"),
    Bug("the reaper does not look at the locked version again", reap, "RECLAIM",
        {"WHERE state = 'RUNNING' AND attempt = attempt_seen AND lease_id = lease_seen": ""}, "S5", "stale_sweep"),
    Bug("the reaper puts back what must not be repeated", reap, "RECLAIM",
        {"WHEN NOT repeatable THEN 'FAILED'": "WHEN false THEN 'FAILED'"}, "S3", "once"),
    Bug("losses are not charged", reap, "RECLAIM", {"judged.losses + 1,": "judged.losses,"}, "S6", "zombie"),
    Bug("the budget of losses is not looked at", reap, "RECLAIM",
        {"WHEN losses + 1 >= max_losses OR failures + losses + 1 >= max_attempts THEN 'FAILED'": ""}, "S6", "exhausted"),
    Bug("a reclaim is not counted", reap, "RECLAIM",
        {"WHERE state <> 'CANCELLED'\n": "WHERE state = 'FAILED'\n"}, "S11", "zombie"),
    Bug("a claim does not look whether the lease has expired", claim, "CLAIM",
        {" AND expires_at > clock_timestamp()": "", "WHERE expires_at > clock_timestamp()": ""}, "S9", "late_claim"),
    Bug("a claim goes by the clock of its transaction", claim, "CLAIM",
        {"expires_at > clock_timestamp()": "expires_at > now()"}, "S9", "late_claim"),
    Bug("a claim is good under a lease that was reaped", claim, "CLAIM", {"state = 'LIVE' AND ": ""}, "S9", "ended"),
    Bug("a claim is good under a lease that drains", claim, "CLAIM",
        {"state = 'LIVE' AND": "state IN ('LIVE', 'DRAINING') AND"}, "S18", "drained/newcomer"),
    Bug("a claim takes what others run", claim, "CLAIM",
        {"task.state = 'QUEUED'": "task.state IN ('QUEUED', 'RUNNING')"}, "S8", "held"),
    Bug("a claim does not raise the attempt", claim, "CLAIM", {"task.attempt + 1": "task.attempt"}, "S8", "plain"),
    Bug("a claim raises the attempt by two", claim, "CLAIM", {"task.attempt + 1": "task.attempt + 2"}, "S8", "plain"),
    Bug("a claim takes tasks of any name", claim, "CLAIM", {"handler.name = task.name": "true"}, "S20", "mystery"),
    Bug("a claim hands out other arguments", claim, "CLAIM",
        {"task.args::text END": "(task.args - 'numbers')::text END"}, "S19", "plain"),
    Bug("arguments are changed on their way in", submit, "SUBMIT",
        {":args::jsonb": "jsonb_set(:args::jsonb, '{text}', '\"other\"')"}, "S19", "plain"),
    Bug("a key makes a task each time", submit, "SUBMIT_ONCE",
        {"\n  WHERE submitted.task_id = :id::uuid": ""}, "S7", "told_twice"),
    Bug("what was accepted is called refused", submit, "SUBMIT_ONCE",
        {"submitted.fingerprint = :fingerprint::text AS": "false AS"}, "S17", "keyed"),
    Bug("a cancel that is too late is said to be requested", cancel, "CANCEL",
        {"'CANCELLED' ELSE state END AS state": "'CANCELLED' ELSE 'RUNNING' END AS state"}, "S15", "too_late"),
    Bug("a cancel of what runs is said to be done", cancel, "CANCEL",
        {"'CANCELLED' ELSE state END AS state": "'CANCELLED' ELSE 'CANCELLED' END AS state"}, "S15", "too_late"),
    Bug("an operator can put back what has succeeded", dead_letter, "REQUEUE",
        {"held.state = 'FAILED'": "held.state IN ('FAILED', 'SUCCEEDED')"}, "S10", "requeued_in_vain"),
    Bug("what expired is not counted", expire, "EXPIRE",
        {"FROM expired\n  GROUP BY": "FROM expired\n  WHERE false\n  GROUP BY"}, "S11", "expired"),
    Bug("a drain gives its lease up at once", heartbeat, "DRAIN", {"'DRAINING'": "'RELEASED'"}, "S18", "drained"),
    Bug("retention goes by the age of a task", prune, "PRUNE_TASKS",
        {"task.finished_at <": "task.created_at <", "task.state IN ('SUCCEEDED', 'CANCELLED')": "true"},
        "S1", "old_waiting"),
    Bug("what is purged is not counted", prune, "PRUNE_TASKS",
        {"FROM purged\n  GROUP BY": "FROM purged\n  WHERE false\n  GROUP BY"}, "S16", "old"),
]  # fmt: skip
