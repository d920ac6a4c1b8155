"""The alerts on a real Prometheus: a killed worker is told of, nothing else is, and it is told when it is over."""

import re
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from fleet.testing.replicas import replicas
from tests.faults.prometheus import prometheus
from tests.faults.test_metrics import APP, address_of, kill_one, raw, submitting, watcher
from tests.http.running import Running
from tests.support import eventually_sync

__all__ = ["submitting", "watcher"]

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
WINDOW = "20s"  # in place of the minutes of each window: long enough to be seen, short enough to be waited for
ABOUT_THE_KILL = {"FleetLeaseExpired", "FleetTasksInDoubt"}


def quicker(folder: Path) -> Path:
    """Return the rules with each window cut down. What must hold on for a while fires at once."""
    text = RULES.read_text(encoding="utf-8")
    text, windows = re.subn(r"\[\d+m\]", f"[{WINDOW}]", text)
    text, waits = re.subn(r"for: \d+[md]\n", "for: 0s\n", text)
    assert windows
    assert waits
    (folder / "rules.yml").write_text(text, encoding="utf-8")
    return folder / "rules.yml"


def firing(server: str) -> set[str]:
    answer = httpx.get(f"{server}/api/v1/alerts", trust_env=False, timeout=30).raise_for_status().json()
    return {each["labels"]["alertname"] for each in answer["data"]["alerts"] if each["state"] == "firing"}


def looked(server: str) -> bool:
    """Whether every rule has been evaluated, without an error."""
    try:
        answer = httpx.get(f"{server}/api/v1/rules", trust_env=False, timeout=30)
    except httpx.TransportError:
        return False
    if answer.status_code != httpx.codes.OK:
        return False
    rules = [rule for group in answer.json()["data"]["groups"] for rule in group["rules"]]
    assert not [rule["lastError"] for rule in rules if rule.get("lastError")]
    return bool(rules) and all(rule["health"] == "ok" for rule in rules)


@pytest.mark.timeout(300)
def test_a_killed_worker_is_told_of_and_told_to_be_over(
    database_url: str, watcher: psycopg.Connection[Any], tmp_path: Path
) -> None:
    environment = {"FLEET_METRICS": "127.0.0.1:0", "FLEET_SLOTS": "20"}
    with replicas(APP, 3, database_url, environment=environment) as crew, Running(tmp_path, database_url) as api:
        addresses = [address_of(crew, index) for index in range(3)] + [api.address]
        with prometheus(tmp_path, addresses, quicker(tmp_path)) as server:
            eventually_sync(lambda: looked(server))
            eventually_sync(lambda: all(raw(server, "fleet_lease_expirations_total", each) for each in addresses))
            assert not firing(server) & ABOUT_THE_KILL
            kill_one(crew, watcher, addresses)
            killed = time.monotonic()
            eventually_sync(lambda: firing(server) >= ABOUT_THE_KILL)
            assert not firing(server) & {
                "FleetNoWorkers",
                "FleetDatabaseAway",
                "FleetDeadLetters",
                "FleetWorkersVanish",
            }
            eventually_sync(lambda: not firing(server) & ABOUT_THE_KILL, 120)
            assert time.monotonic() - killed > 1
            assert "FleetDeadLettersKept" in firing(server), "somebody has to judge them still"
