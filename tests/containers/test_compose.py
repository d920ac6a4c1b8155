"""The whole stack of deploy/compose.yaml, for real: `make up` brings it up, it works, its workers are replaced under load."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet.testing.image import image
from tests.conformance.room import free_ports
from tests.support import eventually_sync
from tests.testing.rolling import rolled

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
OVERRIDE = """
services:
  postgres:
    ports: ["127.0.0.1:{port}:5432"]
  worker:
    environment: {{FLEET_DEMO_PACE: "1"}}
"""

COUNTERS = {
    "fleet_lease_expirations_total": "lease_expirations",
    "fleet_dead_letters_total": "dead_letters",
    "fleet_reclaims_total": "reclaims",
}
COUNTED = "SELECT name, sum(value)::int FROM fleet.counter WHERE name = ANY(%s) GROUP BY name"
WAITING = "SELECT FROM fleet.task WHERE state IN ('QUEUED', 'RUNNING') LIMIT 1"
BUSY = """
SELECT lease.host, lease.id
FROM fleet.lease
JOIN fleet.task ON task.lease_id = lease.id AND task.state = 'RUNNING'
WHERE lease.state = 'LIVE'
GROUP BY lease.host, lease.id
HAVING count(*) FILTER (WHERE task.repeatable) > 3 AND count(*) FILTER (WHERE NOT task.repeatable) > 3
"""
HELD = """
SELECT count(*) FILTER (WHERE repeatable), count(*) FILTER (WHERE NOT repeatable)
FROM fleet.task
WHERE lease_id = %s AND state = 'RUNNING'
"""

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]  # the image may have to be built


@dataclass
class Stack:
    """The stack under a name, and on ports, of its own."""

    folder: Path
    name: str
    api_port: int
    database_port: int
    prometheus_port: int

    def do(self, command: str) -> None:
        done = subprocess.run(
            [sys.executable, ROOT / "deploy" / "stack.py", command],
            env=os.environ
            | {
                "COMPOSE_PROJECT_NAME": self.name,
                "COMPOSE_FILE": f"{COMPOSE}{os.pathsep}{self.folder / 'override.yaml'}",
                "FLEET_SECRETS": str(self.folder / "secrets"),
                "FLEET_IMAGE": image(),
                "FLEET_API_PORT": str(self.api_port),
                "PROMETHEUS_PORT": str(self.prometheus_port),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def secret(self, name: str) -> str:
        return (self.folder / "secrets" / name).read_text().strip()

    @property
    def url(self) -> str:
        """The database, as this machine sees it."""
        return f"postgresql://fleet:{self.secret('postgres_password')}@127.0.0.1:{self.database_port}/fleet"

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.api_port}",
            headers={"Authorization": f"Bearer {self.secret('api_token')}"},
            trust_env=False,
            timeout=30,
        )

    def prometheus(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.prometheus_port}", trust_env=False, timeout=30)

    def engine(self, *arguments: str) -> str:
        return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout

    def containers(self, service: str) -> list[str]:
        labels = {"com.docker.compose.project": self.name, "com.docker.compose.service": service}
        filters = [f"--filter=label={key}={value}" for key, value in labels.items()]
        return self.engine("ps", "-q", *filters).split()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("docker") is None:
        pytest.fail("the stack is driven by the command `docker`, which is not there")
    stack = Stack(tmp_path_factory.mktemp("stack"), f"fleet-{uuid4().hex[:6]}", *free_ports(3))
    (stack.folder / "override.yaml").write_text(OVERRIDE.format(port=stack.database_port))
    try:
        stack.do("up")
        yield stack
    finally:
        stack.do("down")
        stack.engine("volume", "prune", "-f", f"--filter=label=com.docker.compose.project={stack.name}")


def submit(client: httpx.Client, number: int, name: str = "analyze") -> UUID:
    args = {"text": f"to be or not to be {number}"} | ({"title": "Hamlet"} if name == "publish" else {})
    answer = client.post("/tasks", json={"name": name, "args": args}, headers={"Idempotency-Key": str(uuid4())})
    assert answer.status_code == 202, answer.text
    return UUID(answer.json()["id"])


def test_a_task_that_the_api_takes_is_run_by_a_worker(stack: Stack) -> None:
    with stack.client() as client:
        task = submit(client, 7)
        words = eventually_sync(lambda: _words(client, task))
        assert words == 7
        assert len(client.get("/workers").json()["items"]) == 3


def _words(client: httpx.Client, task: UUID) -> int | None:
    """Return what a worker made of it, once it has."""
    found = client.get(f"/tasks/{task}").json()
    return int(found["result"]["words"]) if found["state"] == "SUCCEEDED" else None


def test_nobody_gets_in_without_the_token(stack: Stack) -> None:
    answer = httpx.get(f"http://127.0.0.1:{stack.api_port}/tasks", trust_env=False)
    assert answer.status_code == 401


@pytest.mark.fault("Deploy", "a rolling restart under load")
def test_a_rolling_restart_loses_nothing_charges_nothing_and_never_pauses(stack: Stack) -> None:
    with stack.client() as client:
        rolled(stack.url, lambda number: submit(client, number), lambda: stack.do("roll"), workers=3)


def test_our_containers_may_do_as_little_as_their_file_says(stack: Stack) -> None:
    for service in ("worker", "api"):
        for container in stack.containers(service):
            limits = "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}} {{.HostConfig.SecurityOpt}}"
            said = stack.engine("inspect", "--format", limits, container).strip()
            assert said == "true [ALL] [no-new-privileges:true]"
            assert stack.engine("exec", container, "id", "-u").strip() == "10001"


def test_no_secret_stands_where_the_engine_shows_it(stack: Stack) -> None:
    password, token = stack.secret("postgres_password"), stack.secret("api_token")
    for service in ("postgres", "worker", "api", "prometheus"):
        for container in stack.containers(service):
            said = stack.engine("inspect", container) + stack.engine("logs", container)
            assert password not in said
            assert token not in said


def test_prometheus_has_our_rules_and_looks_for_every_process(stack: Stack) -> None:
    with stack.prometheus() as prometheus:
        groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
        assert [rule for group in groups for rule in group["rules"]]

        def targets() -> list[str]:
            found = prometheus.get("/api/v1/targets").json()["data"]["activeTargets"]
            return sorted(each["labels"]["job"] for each in found)

        expected = ["fleet"] * 3 + ["fleet-api"] + ["fleet-worker"] * 3
        eventually_sync(lambda: targets() == expected)


def test_a_killed_worker_is_counted_alike_by_the_database_a_scrape_and_prometheus(stack: Stack) -> None:
    with (
        psycopg.connect(stack.url, autocommit=True, client_encoding="utf8") as database,
        stack.client() as client,
        stack.prometheus() as prometheus,
    ):
        eventually_sync(lambda: len(stored(prometheus)) == 3, 60)
        before = counted(database)
        client.post("/queues/default/pause").raise_for_status()
        for number in range(450):
            submit(client, number)
            submit(client, number, "publish")
        client.post("/queues/default/resume").raise_for_status()
        victim, lease = busy_worker(stack, database)
        stack.engine("kill", "--signal=KILL", victim)
        held = database.execute(HELD, (lease,)).fetchone() or (0, 0)
        assert min(held) > 0
        cleared = "SELECT FROM fleet.lease WHERE id = %s AND cleared_at IS NOT NULL"
        eventually_sync(lambda: database.execute(cleared, (lease,)).fetchall(), 90)

        grown = {"lease_expirations": 1, "dead_letters": held[1], "reclaims": held[0]}
        expected = {name: before.get(name, 0) + value for name, value in grown.items()}
        assert counted(database) == expected
        assert scraped(client) == expected
        eventually_sync(lambda: [each for each in stored(prometheus) if each != expected] == [], 60)
        eventually_sync(lambda: firing(prometheus) >= {"FleetLeaseExpired", "FleetTasksInDoubt"}, 60)

        stack.do("up")
        eventually_sync(lambda: not database.execute(WAITING).fetchall(), 120)
        ends: dict[str, int] = dict(
            database.execute("SELECT state, count(*) FROM fleet.task GROUP BY state").fetchall()
        )
        assert ends["FAILED"] == held[1], "what must not be done twice is left to a person, and nothing else"
        assert ends.keys() == {"FAILED", "SUCCEEDED"}


def busy_worker(stack: Stack, database: psycopg.Connection[Any]) -> tuple[str, UUID]:
    """Wait until a worker is at work on several tasks of both kinds: its container and its lease."""

    def found() -> tuple[str, UUID] | None:
        for host, lease in database.execute(BUSY).fetchall():
            return next(each for each in stack.containers("worker") if each.startswith(host)), lease
        return None

    container, lease = eventually_sync(found) or ("", UUID(int=0))
    return container, lease


def counted(database: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(database.execute(COUNTED, (list(COUNTERS.values()),)).fetchall())


def scraped(client: httpx.Client) -> dict[str, int]:
    """The same, as the API tells it to whoever scrapes."""
    families = text_string_to_metric_families(client.get("/metrics/fleet").raise_for_status().text)
    samples = [sample for each in families for sample in each.samples]
    return {
        counter: int(sum(sample.value for sample in samples if sample.name == name))
        for name, counter in COUNTERS.items()
    }


def stored(prometheus: httpx.Client) -> list[dict[str, int]]:
    """The same, as Prometheus has it of each worker that it scrapes now."""
    told: dict[str, dict[str, int]] = {}
    for name, counter in COUNTERS.items():
        question = f'sum by (instance) ({name} and on (instance) up{{job="fleet"}} == 1)'
        answer = prometheus.get("/api/v1/query", params={"query": question}).raise_for_status().json()
        for series in answer["data"]["result"]:
            told.setdefault(series["metric"]["instance"], {})[counter] = int(float(series["value"][1]))
    return list(told.values())


def firing(prometheus: httpx.Client) -> set[str]:
    alerts = prometheus.get("/api/v1/alerts").raise_for_status().json()["data"]["alerts"]
    return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}
