"""The manifests name existing commands, options, ports, paths and settings."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.test import override_settings
from django.urls import get_resolver

from enode_django.checks import settings as checks
from enode_django.conf.groups import Conf
from enode_django.processors.supervisor import BEYOND_GRACE
from tests.docs.blocks import blocks
from tests.docs.pages import DOCS

KUBERNETES = DOCS / "deploy" / "kubernetes"
FILES = sorted(KUBERNETES.glob("*.yaml"))
SECRET = re.compile(r"(?i)password|secret|token|key|database_url")

Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    return [one for path in FILES for one in yaml.safe_load_all(path.read_text())]


def of_kind(*kinds: str) -> list[Manifest]:
    return [one for one in manifests() if one["kind"] in kinds]


WORKLOADS = of_kind("Deployment", "StatefulSet", "Job")


def workload_id(workload: Manifest) -> str:
    return str(workload["metadata"]["name"])


def container_of(workload: Manifest) -> Manifest:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


def options_of(workload: Manifest) -> dict[str, Any]:
    """Return the options as the workload's management command parses them. It must know all of them."""
    container = container_of(workload)
    python, manage, name = container["command"]
    assert (python, manage) == ("python", "manage.py")
    command = get_commands()[name]
    loaded = load_command_class(command, name) if isinstance(command, str) else command
    return vars(loaded.create_parser("manage.py", name).parse_args(container["args"]))


managed = pytest.mark.parametrize(
    "workload", [one for one in WORKLOADS if container_of(one)["command"][0] == "python"], ids=workload_id
)
every = pytest.mark.parametrize("workload", WORKLOADS, ids=workload_id)


@managed
def test_a_command_and_its_options_exist_and_its_health_port_is_the_one_that_is_probed(workload: Manifest) -> None:
    options, container = options_of(workload), container_of(workload)
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    assert ports.get("health") == options.get("health_port")
    probes = [container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in container]
    if probes:
        assert options["health_address"] == "0.0.0.0"
    assert {probe["httpGet"]["port"] for probe in probes} <= {"health"}
    assert {probe["httpGet"]["path"] for probe in probes} <= {"/live", "/ready"}


def test_the_paths_that_web_processes_are_probed_at_exist() -> None:
    (web,) = (one for one in WORKLOADS if workload_id(one) == "web")
    container = container_of(web)
    paths = [container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    assert [get_resolver().resolve(path).view_name for path in paths] == ["enode_health:live", "enode_health:ready"]


@managed
def test_processes_are_not_killed_before_they_have_drained(workload: Manifest) -> None:
    if workload["kind"] == "Job":
        return
    patience = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert patience > Conf().WORKERS.GRACE + BEYOND_GRACE


@every
def test_nothing_runs_as_root_or_writes_to_its_image_or_takes_all_memory(workload: Manifest) -> None:
    pod, container = workload["spec"]["template"]["spec"], container_of(workload)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    own = container["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert {"cpu", "memory"} == set(container["resources"]["requests"])
    assert set(container["resources"]["limits"]) == {"memory"}
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes | claims


def test_secrets_come_from_secrets_alone() -> None:
    (settings,) = of_kind("ConfigMap")
    assert not [name for name in settings["data"] if SECRET.search(name)]
    assert of_kind("Secret") == []
    for workload in WORKLOADS:
        container = container_of(workload)
        assert "env" not in container
        assert container["envFrom"] == [{"configMapRef": {"name": "shop"}}, {"secretRef": {"name": "shop"}}]


def test_services_and_budgets_select_what_there_is() -> None:
    labels = {workload_id(one): one["spec"]["template"]["metadata"]["labels"] for one in WORKLOADS}
    ports = {workload_id(one): {port["name"] for port in container_of(one).get("ports", ())} for one in WORKLOADS}
    for workload in of_kind("Deployment", "StatefulSet"):
        assert workload["spec"]["selector"]["matchLabels"] == labels[workload_id(workload)]
    for service in of_kind("Service"):
        name = service["spec"]["selector"]["app"]
        assert service["spec"]["selector"] == labels[name]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[name]
    budgets = [budget["spec"]["selector"]["matchLabels"] for budget in of_kind("PodDisruptionBudget")]
    assert budgets == [labels[workload_id(one)] for one in of_kind("Deployment")]


def test_connections_are_let_in_to_what_there_is_from_what_there_is() -> None:
    ports = {workload_id(one): {port["name"] for port in container_of(one).get("ports", ())} for one in WORKLOADS}
    shut = set[str]()
    for policy in of_kind("NetworkPolicy"):
        chosen = apps_of(policy["spec"]["podSelector"])
        shut |= chosen
        for rule in policy["spec"]["ingress"]:
            for app in chosen:
                assert {port["port"] for port in rule["ports"]} <= ports[app]
            for source in rule["from"]:
                assert apps_of(source.get("podSelector", {})) <= ports.keys()
    assert shut == {"broker", "command-workers", "event-workers"}


def apps_of(selector: Manifest) -> set[str]:
    labels = {name for key, name in selector.get("matchLabels", {}).items() if key == "app"}
    return labels | {name for one in selector.get("matchExpressions", ()) for name in one["values"]}


def test_the_services_leave_what_they_write_to_their_user_alone() -> None:
    services = {path.name: path.read_text() for path in (DOCS / "deploy").glob("*.service")}
    assert all("\nUMask=0077\n" in text for text in services.values())
    assert "\nStateDirectoryMode=0700\n" in services["enode-broker.service"]


def test_the_queue_is_where_the_broker_listens() -> None:
    (broker,) = of_kind("StatefulSet")
    (service,) = (one for one in of_kind("Service") if one["spec"]["selector"]["app"] == workload_id(broker))
    (settings,) = of_kind("ConfigMap")
    (port,) = service["spec"]["ports"]
    assert settings["data"]["QUEUE_LOCATION"] == f"tcp://{service['metadata']['name']}:{port['port']}"
    assert options_of(broker)["listen"] == f"tcp://0.0.0.0:{port['port']}"


def test_every_file_is_applied() -> None:
    (whole,) = of_kind("Kustomization")
    assert sorted([*whole["resources"], "kustomization.yaml"]) == [path.name for path in FILES]


def test_the_settings_of_the_page_are_those_that_the_manifests_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = (block for block in blocks(DOCS / "howto" / "deploy.md") if block.runs)
    (settings,) = of_kind("ConfigMap")
    for name, value in {**settings["data"], "QUEUE_SECRET": "sixteen characters"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "settings.py").write_text(block.text)
    enode = runpy.run_path(str(tmp_path / "settings.py"))["ENODE"]
    assert enode["QUEUE"]["LOCATION"] == settings["data"]["QUEUE_LOCATION"]
    mounts = {
        mount["mountPath"] for one in WORKLOADS for mount in container_of(one)["volumeMounts"] if mount["name"] == "tls"
    }
    assert {str(Path(enode["BROKER"]["TLS_KEY"]).parent)} == mounts
    with override_settings(ENODE=enode):
        assert checks.check_settings(None) == []
