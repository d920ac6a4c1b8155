"""The alerts as Prometheus' own tool judges them: each fires when it must, keeps still when it must not, and resolves."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
RUNBOOKS = ROOT / "docs" / "runbooks"
STEP_SECONDS = 15
MINUTE = 60 // STEP_SECONDS


def rules() -> dict[str, dict[str, Any]]:
    """Return each alert by its name."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


class Case(NamedTuple):
    """Series as promtool notes them, and the minutes at which it must fire, must not yet, and must no more."""

    alert: str
    series: dict[str, str]
    fires: int
    still: int
    resolves: int
    labels: dict[str, str]
    summary: str
    slower: int = 1  # times: for what takes days


def steps(*runs: tuple[float, int]) -> str:
    """Write values as promtool reads them: each for so many minutes."""
    return " ".join(f"{value:g}x{minutes * MINUTE - 1}" for value, minutes in runs)


def jump(before: int, by: int) -> str:
    """Write a counter that rises once after ten minutes, and then stands for an hour."""
    return steps((before, 10), (before + by, 60))


# Healthy for ten minutes, broken for a while, healthy again.
CASES = [
    Case(
        "FleetQueueDelayed",
        {
            'fleet_queue_oldest_ready_age_seconds{queue="mail",instance="a"}': steps((0, 10), (400, 10), (1, 20)),
            'fleet_queue_oldest_ready_age_seconds{queue="mail",instance="b"}': steps((0, 10), (400, 10), (1, 20)),
            'fleet_queue_oldest_ready_age_seconds{queue="held",instance="a"}': steps((900, 40)),
            'fleet_queue_paused{queue="held",instance="a"}': steps((1, 40)),
            'fleet_queue_paused{queue="mail",instance="a"}': steps((0, 40)),
        },
        14, 11, 22, {"queue": "mail"}, "A task in mail has been due for 6m 40s",
    ),
    Case(
        "FleetQueueUnserved",
        {
            'fleet_queue_workers{queue="mail",instance="a"}': steps((2, 10), (0, 10), (2, 20)),
            'fleet_queue_tasks{queue="mail",state="ready",instance="a"}': steps((7, 40)),
            'fleet_queue_workers{queue="idle",instance="a"}': steps((0, 40)),
            'fleet_queue_tasks{queue="idle",state="ready",instance="a"}': steps((0, 40)),
        },
        13, 10, 22, {"queue": "mail"}, "Tasks wait in mail, and no worker serves it",
    ),
    Case(
        "FleetTasksInDoubt",
        {'fleet_dead_letters_total{queue="mail",reason="lease_expired",instance="a"}': jump(5, 2),
         'fleet_dead_letters_total{queue="mail",reason="handler_error",instance="a"}': jump(0, 9)},
        12, 9, 27, {"queue": "mail"}, "About 2 tasks in mail may or may not have had their effect",
    ),
    Case(
        "FleetDeadLetters",
        {'fleet_dead_letters_total{queue="mail",reason="handler_error",instance="a"}': jump(5, 2),
         'fleet_dead_letters_total{queue="mail",reason="lease_expired",instance="a"}': jump(0, 9)},
        12, 9, 27, {"queue": "mail", "reason": "handler_error"},
        "About 2 tasks in mail have failed for good (handler_error)",
    ),
    Case(
        "FleetDeadLettersKept",
        {'fleet_dead_letters{queue="mail",reason="handler_error",instance="a"}': steps((0, 10), (3, 300), (0, 20)),
         'fleet_dead_letters{queue="mail",reason="handler_error",instance="b"}': steps((0, 10), (3, 300), (0, 20)),
         'fleet_dead_letters{queue="mail",reason="timeout",instance="a"}': steps((0, 10), (1, 300), (0, 20))},
        285, 275, 312, {"queue": "mail"}, "4 dead letters in mail wait for a person", 16,
    ),
    Case(
        "FleetNoWorkers",
        {'fleet_workers{state="LIVE",instance="a"}': steps((3, 10), (0, 10), (3, 20)),
         'fleet_workers{state="DRAINING",instance="a"}': steps((0, 40))},
        12, 10, 21, {}, "No worker runs",
    ),
    Case(
        "FleetLeasesOverdue",
        {'fleet_leases_overdue{instance="a"}': steps((0, 10), (2, 10), (0, 20))},
        13, 11, 21, {}, "2 expired leases have not been reaped",
    ),
    Case(
        "FleetLeaseExpired",
        {'fleet_lease_expirations_total{instance="a"}': jump(8, 1),
         'fleet_lease_expirations_total{instance="b"}': jump(8, 1)},
        12, 9, 22, {}, "About 1 workers have vanished within ten minutes",
    ),
    Case(
        "FleetWorkersVanish",
        {'fleet_lease_expirations_total{instance="a"}': jump(8, 6)},
        12, 9, 27, {}, "Workers vanish again and again",
    ),
    Case(
        "FleetFenced",
        {'fleet_fence_rejections_total{queue="mail",instance="a"}': jump(0, 4)},
        12, 9, 27, {"queue": "mail"}, "About 4 reports of tasks in mail came after their lease had ended",
    ),
    Case(
        "FleetEventLoopSlow",
        {'fleet_event_loop_lag_seconds{instance="a"}': steps((0.001, 10), (3, 10), (0.001, 20))},
        12, 10, 21, {"instance": "a"}, "The event loop of a answers 3s late",
    ),
    Case(
        "FleetListenerDown",
        {'fleet_listener_up{instance="a"}': steps((1, 10), (0, 30), (1, 20))},
        27, 20, 41, {"instance": "a"}, "a hears no notifications",
    ),
    Case(
        "FleetDatabaseAway",
        {'fleet_up{instance="a"}': steps((1, 10), (0, 10), (1, 20)),
         'fleet_up{instance="b"}': steps((1, 10), (0, 10), (1, 20))},
        12, 10, 21, {}, "The database does not answer",
    ),
    Case(
        "FleetHeartbeatLate",
        {'fleet_heartbeat_last_success_timestamp_seconds{instance="a"}': "0+15x40 600x8 750+15x60"},
        11, 10, 13, {"instance": "a"}, "a has not renewed its lease for 1m 0s",
    ),
    Case(
        "FleetDatabaseErrors",
        {'fleet_db_errors_total{op="claim",sqlstate_class="57",instance="a"}': "0x40 0+6x60 360x100"},
        18, 12, 35, {"op": "claim", "sqlstate_class": "57"}, "Statements fail (claim, SQLSTATE class 57)",
    ),
    Case(
        "FleetOldTransaction",
        {'fleet_oldest_transaction_age_seconds{instance="a"}': steps((3, 10), (1000, 10), (3, 20))},
        11, 9, 21, {}, "A transaction has been open for 16m 40s",
    ),
    Case(
        "FleetDeadTuples",
        {'fleet_dead_tuples{instance="a"}': steps((10, 10), (2e6, 60), (10, 20))},
        45, 30, 71, {}, "fleet.task has 2M dead rows",
    ),
]  # fmt: skip


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not here: it comes with Debian's package prometheus, and with Prometheus itself")
    return found


def judge(*words: str) -> None:
    done = subprocess.run([promtool(), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_well_formed() -> None:
    judge("check", "rules", str(RULES))


def test_every_alert_has_its_case_its_severity_and_its_runbook() -> None:
    assert {case.alert for case in CASES} == set(rules())
    assert {page.stem for page in RUNBOOKS.glob("Fleet*.md")} == set(rules())
    told = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert {name: severity for name, page, severity in told if name == page} == {
        name: rule["labels"]["severity"] for name, rule in rules().items()
    }
    for name, rule in rules().items():
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
        assert f"*Severity: {rule['labels']['severity']}.*" in (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_it_fires_when_it_must_not_before_and_not_afterwards(case: Case, tmp_path: Path) -> None:
    rule = rules()[case.alert]
    fired = {
        "exp_labels": case.labels | rule["labels"],
        "exp_annotations": rule["annotations"] | {"summary": case.summary},
    }
    looks = [(case.still, []), (case.fires, [fired]), (case.resolves, [])]
    interval = f"{STEP_SECONDS * case.slower}s"
    test = {
        "interval": interval,
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute * case.slower}m", "alertname": case.alert, "exp_alerts": alerts}
            for minute, alerts in looks
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": [test]}))
    judge("test", "rules", str(path))
