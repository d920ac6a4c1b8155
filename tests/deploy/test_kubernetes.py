"""The manifests of deploy/kubernetes: they build, fit their schemas, and agree with each other and with the rest."""

import importlib.util
import subprocess
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
import yaml

from fleet.config import duration
from tests.deploy.commands import AFTER_THE_DRAIN, DEPLOY, check_command

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("base", "overlays/dev", "overlays/ha")
VERSIONS = ("1.29", "1.32", "1.37")
CUSTOM = {"PodMonitor", "PrometheusRule"}

Resource = dict[str, Any]
Resources = list[Resource]


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def resources(overlay: str, tool: Callable[[str], str]) -> Resources:
    return build(overlay, tool)


def build(overlay: str, tool: Callable[[str], str]) -> Resources:
    built = subprocess.run(
        [tool("kubectl"), "kustomize", KUBERNETES / overlay], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "deprecated" not in built.stderr
    return list(yaml.safe_load_all(built.stdout))


def of_kind(resources: Resources, *kinds: str) -> Resources:
    found = [each for each in resources if each["kind"] in kinds]
    assert found, f"there is no {' or '.join(kinds)}"
    return found


def pod(resource: Resource) -> Resource:
    spec: Resource = resource["spec"]["template"]["spec"]
    return spec


def container(resource: Resource) -> Resource:
    (only,) = pod(resource)["containers"]
    return dict(only)


def named(resources: Resources, name: str) -> Resource:
    (found,) = [each for each in resources if each["metadata"]["name"] == name and "template" in each.get("spec", {})]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_fits_the_schema_of_its_kind(resources: Resources, version: str) -> None:
    for resource in resources:
        if resource["kind"] not in CUSTOM:
            kubernetes_validate.validate(resource, version, strict=True)


def test_the_schemas_refuse_what_is_wrong(tool: Callable[[str], str]) -> None:
    worker = named(build("base", tool), "fleet-worker")
    worker["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(worker, VERSIONS[-1], strict=True)


def test_everything_is_in_the_namespace(resources: Resources) -> None:
    for resource in resources:
        if resource["kind"] != "Namespace":
            assert resource["metadata"]["namespace"] == "fleet", resource


def test_every_container_runs_a_command_of_this_version(resources: Resources) -> None:
    for resource in of_kind(resources, "Deployment", "Job"):
        check_command(container(resource)["args"])


def test_a_worker_is_given_its_drain_and_ten_seconds(resources: Resources) -> None:
    (settings,) = of_kind(resources, "ConfigMap")
    grace = pod(named(resources, "fleet-worker"))["terminationGracePeriodSeconds"]
    drain = duration(settings["data"]["FLEET_DRAIN_TIMEOUT"])
    assert grace == (drain + AFTER_THE_DRAIN).total_seconds()
    assert pod(named(resources, "fleet-api"))["terminationGracePeriodSeconds"] > grace


def test_every_pod_may_do_as_little_as_the_restricted_standard_demands(resources: Resources) -> None:
    for resource in of_kind(resources, "Deployment", "Job"):
        secured = pod(resource)["securityContext"]
        assert secured["runAsNonRoot"] is True
        assert secured["runAsUser"] == 10001
        assert secured["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container(resource)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container(resource)["resources"]["requests"]
        assert container(resource)["resources"]["limits"]["memory"]


def test_probes_ask_what_is_served_and_life_is_never_asked_of_the_database(resources: Resources) -> None:
    for resource in of_kind(resources, "Deployment"):
        ports = {port["name"] for port in container(resource)["ports"]}
        probes = {name: container(resource)[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {probe["port"] for probe in probes.values()} <= ports
        assert probes["liveness"]["path"] == "/livez"
        assert probes["readiness"]["path"] == "/readyz"


def test_every_selector_finds_exactly_one_deployment(resources: Resources) -> None:
    deployments = of_kind(resources, "Deployment")
    for resource in of_kind(resources, "Deployment", "Service", "PodDisruptionBudget"):
        selector = resource["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        labels = [each["spec"]["template"]["metadata"]["labels"] for each in deployments]
        assert sum(wanted.items() <= found.items() for found in labels) == 1, resource["metadata"]


def test_what_is_mounted_or_read_is_there(resources: Resources) -> None:
    maps = {each["metadata"]["name"] for each in of_kind(resources, "ConfigMap")}
    secrets = {each["metadata"]["name"] for each in resources if each["kind"] == "Secret"} or {"fleet"}
    for resource in of_kind(resources, "Deployment", "Job"):
        assert {each["configMapRef"]["name"] for each in container(resource).get("envFrom", [])} <= maps
        volumes = {each["name"]: each for each in pod(resource)["volumes"]}
        assert {each["name"] for each in container(resource)["volumeMounts"]} == set(volumes)
        assert volumes["secrets"]["secret"]["secretName"] in secrets


def test_placeholders_are_in_dev_alone(tool: Callable[[str], str]) -> None:
    secrets = {name: [each for each in build(name, tool) if each["kind"] == "Secret"] for name in OVERLAYS}
    assert {name for name, found in secrets.items() if found} == {"overlays/dev"}


def test_high_availability_spreads_what_runs(tool: Callable[[str], str]) -> None:
    for deployment in of_kind(build("overlays/ha", tool), "Deployment"):
        spread = pod(deployment)["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        assert deployment["spec"]["replicas"] >= 2
        labels = deployment["spec"]["template"]["metadata"]["labels"].items()
        assert all(each["labelSelector"]["matchLabels"].items() <= labels for each in spread)


def test_monitors_scrape_ports_that_pods_have(tool: Callable[[str], str]) -> None:
    resources = build("base", tool)
    for monitor in of_kind(resources, "PodMonitor"):
        assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (found,) = [
            each
            for each in of_kind(resources, "Deployment")
            if wanted <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        ports = {port["name"] for port in container(found)["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports


def test_the_rules_in_kubernetes_are_those_of_prometheus(tool: Callable[[str], str]) -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    for resource in of_kind(build("base", tool), "PrometheusRule"):
        assert resource["apiVersion"] == "monitoring.coreos.com/v1"
        assert resource["spec"] == rules, "write them anew: python deploy/kubernetes/rules.py"


def test_rules_are_written_as_they_stand() -> None:
    spec = importlib.util.spec_from_file_location("rules", KUBERNETES / "rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "groups:\n  - name: a\n    rules:\n      - alert: B\n        expr: |\n          x\n          > 1\n"
    assert yaml.safe_load(module.rule(text))["spec"] == yaml.safe_load(text)
