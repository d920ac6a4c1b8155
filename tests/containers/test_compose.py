"""The whole stack of deploy/compose.yaml, for real: `make up` brings it up, it works, its workers are replaced under load."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest

from fleet.testing.image import image
from tests.support import eventually_sync
from tests.testing.rolling import rolled

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
OVERRIDE = """
services:
  postgres:
    ports: ["127.0.0.1:{port}:5432"]
  worker:
    environment: {{FLEET_DEMO_PACE: "0.1"}}
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


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def submit(client: httpx.Client, number: int) -> UUID:
    answer = client.post(
        "/tasks",
        json={"name": "analyze", "args": {"text": f"to be or not to be {number}"}},
        headers={"Idempotency-Key": str(uuid4())},
    )
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
    with httpx.Client(base_url=f"http://127.0.0.1:{stack.prometheus_port}", trust_env=False) as prometheus:
        groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
        assert [rule for group in groups for rule in group["rules"]]

        def targets() -> list[str]:
            found = prometheus.get("/api/v1/targets").json()["data"]["activeTargets"]
            return sorted(each["labels"]["job"] for each in found)

        expected = ["fleet"] * 3 + ["fleet-api"] + ["fleet-worker"] * 3
        eventually_sync(lambda: targets() == expected)
