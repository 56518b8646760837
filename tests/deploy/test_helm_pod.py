"""What no linter knows of the chart: its programs take their flags and settings, and its names and ports agree."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.metrics.gateway import GatewayMetrics
from orchestrator.api.settings.settings import Settings
from specgate.service.config import ServiceConfig
from tests.deploy.charts import Rendered, rendered
from tests.deploy.containers import endpoint_asked, gateway_of, instructions, programs, service_of
from tests.deploy.test_helm import ALL, VARIANTS

MAX_NAME = 15
"""Letters of a port's name, which no schema of Kubernetes tells."""


@pytest.fixture(params=VARIANTS)
def chart(request: pytest.FixtureRequest) -> Rendered:
    return rendered(VARIANTS[request.param])


def settings_of(chart: Rendered, folder: Path) -> Settings:
    (folder / "gateway.yaml").write_text(chart.of("ConfigMap")["data"]["gateway.yaml"])
    mounts = {one["name"]: one["mountPath"] for one in chart.containers["gateway"]["volumeMounts"]}
    files = {f"{mounts['settings']}/gateway.yaml": folder / "gateway.yaml"}
    return gateway_of(chart.containers["gateway"]["command"], files)


def services_of(chart: Rendered) -> dict[str, ServiceConfig]:
    return {name: service_of(one["command"]) for name, one in chart.containers.items() if name != "gateway"}


def test_the_gateway_asks_the_services_of_its_own_pod(chart: Rendered, tmp_path: Path) -> None:
    settings, services = settings_of(chart, tmp_path), services_of(chart)
    assert (settings.drafter is None) == ("drafter" not in services)
    for role, config in services.items():
        assert getattr(settings, role).endpoints == (f"{config.host}:{config.port}",)
        assert config.host == "127.0.0.1"
    assert settings.verifier.model == services["verifier"].model
    assert settings.gateway.max_running == services["verifier"].max_sessions
    assert {one["command"][0] for one in chart.containers.values()} <= programs()


def test_ports_are_those_that_something_listens_on(chart: Rendered, tmp_path: Path) -> None:
    gateway = settings_of(chart, tmp_path).gateway
    assert gateway.operations is not None
    metrics = {config.metrics_port for config in services_of(chart).values()}
    listening = {gateway.http.port, gateway.grpc.port, gateway.operations.port, *metrics}
    ports = [port for one in chart.containers.values() for port in one["ports"]]
    names = [port["name"] for port in ports]
    assert {port["containerPort"] for port in ports} == listening
    assert len(set(names)) == len(names)
    assert all(len(name) <= MAX_NAME for name in names)
    service = chart.of("Service")
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(names)
    assert service["metadata"]["name"] in gateway.http.hosts
    if any(one["kind"] == "NetworkPolicy" for one in chart.manifests):
        (rule,) = chart.of("NetworkPolicy")["spec"]["ingress"]
        assert {port["port"] for port in rule["ports"]} >= listening


def test_probes_ask_what_is_there(chart: Rendered, tmp_path: Path) -> None:
    gateway = chart.containers["gateway"]
    paths = {name: one["httpGet"] for name, one in gateway.items() if name.endswith("Probe")}
    assert paths["livenessProbe"]["path"] == paths["startupProbe"]["path"] == "/healthz"
    assert paths["readinessProbe"]["path"] == "/readyz"
    # By plain HTTP, also where the doors have TLS.
    operations = settings_of(chart, tmp_path).gateway.operations
    assert operations is not None
    assert operations.tls is None
    assert {one["port"] for one in paths.values()} == {"operations"}
    for role, config in services_of(chart).items():
        probes = [one for name, one in chart.containers[role].items() if name.endswith("Probe")]
        assert {endpoint_asked(one["exec"]["command"]) for one in probes} == {f"127.0.0.1:{config.port}"}


def test_the_pod_outlives_its_drain(chart: Rendered, tmp_path: Path) -> None:
    assert chart.pod["terminationGracePeriodSeconds"] > 2 * settings_of(chart, tmp_path).drain_s


def test_the_user_is_the_image_s(chart: Rendered) -> None:
    user, group = list(instructions("USER"))[-1].split(":")
    security = chart.pod["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["fsGroup"]) == (True, int(user), int(group))


def test_keys_and_certificates_are_files_of_the_secrets_that_are_mounted(tmp_path: Path) -> None:
    chart = rendered(ALL)
    settings = settings_of(chart, tmp_path)
    mounts = {one["name"]: Path(one["mountPath"]) for one in chart.containers["gateway"]["volumeMounts"]}
    assert settings.gateway.keys_file == mounts["keys"] / "keys.yaml"
    for door in (settings.gateway.http, settings.gateway.grpc):
        assert door.tls is not None
        assert (door.tls.certificate, door.tls.key) == (mounts["tls"] / "tls.crt", mounts["tls"] / "tls.key")
    assert (settings.defaults.max_tokens, settings.gateway.max_queued) == (64, 128)
    assert settings_of(rendered(), tmp_path).gateway.keys_file is None


class NoQueue:
    num_running = num_waiting = 0


def missing_from_the_gateway(query: str) -> set[str]:
    """Return the metrics of a query that a gateway does not have under the model's name."""
    metrics = GatewayMetrics("specgate", NoQueue(), 1, 1, has_drafter=True)
    there = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    words = query.replace("(", " ").replace("{", " ").split()
    asked = {word for word in words if word.startswith("specgate_")}
    assert asked
    return asked - there


def test_keda_asks_for_gauges_that_the_gateway_has() -> None:
    chart = rendered(ALL)
    scaled: Any = chart.of("ScaledObject")["spec"]
    (trigger,) = scaled["triggers"]
    assert missing_from_the_gateway(trigger["metadata"]["query"]) == set()
    assert trigger["metadata"]["query"].count('{model_name="specgate"}') == 2
    assert missing_from_the_gateway("sum(specgate_num_requests_queued{})") == {"specgate_num_requests_queued"}
    assert scaled["scaleTargetRef"]["name"] == chart.of("Deployment")["metadata"]["name"]
    # Else a pod would be full before another one is asked for.
    assert int(trigger["metadata"]["threshold"]) < service_of(chart.containers["verifier"]["command"]).max_sessions


def test_the_monitor_tells_the_roles_of_our_alerts() -> None:
    chart = rendered(ALL)
    endpoints = chart.of("PodMonitor")["spec"]["podMetricsEndpoints"]
    names = {port["name"]: role for role, one in chart.containers.items() for port in one["ports"]}
    told = {one["port"]: one["relabelings"][0]["replacement"] for one in endpoints}
    assert told == {port: names[port] for port in told}
    assert set(told.values()) == {"gateway", "verifier", "drafter"}
