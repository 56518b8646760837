"""deploy/kubernetes/rayservice.yaml: pods, KubeRay's keys and our settings are valid, and agree."""

import re
from typing import Any

import pytest
import yaml

from orchestrator.api.settings.settings import Settings, settings_of
from tests.deploy.containers import DEPLOY, ROOT, Values, documents, instructions
from tests.deploy.schemas import check_manifest, check_pod


def manifests() -> tuple[Values, Values]:
    rayservice, service = documents((DEPLOY / "kubernetes" / "rayservice.yaml").read_text())
    return rayservice, service


def cluster_of(rayservice: Values) -> Any:
    return rayservice["spec"]["rayClusterConfig"]


def groups_of(rayservice: Values) -> dict[str, Any]:
    return {one["groupName"]: one for one in cluster_of(rayservice)["workerGroupSpecs"]}


def application_of(rayservice: Values) -> Any:
    schema = pytest.importorskip("ray.serve.schema")
    deployed = schema.ServeDeploySchema.model_validate(yaml.safe_load(rayservice["spec"]["serveConfigV2"]))
    assert deployed.proxy_location == "Disabled"
    (application,) = deployed.applications
    return application


def check(rayservice: Values) -> None:
    check_manifest(rayservice)
    for group in (cluster_of(rayservice)["headGroupSpec"], *cluster_of(rayservice)["workerGroupSpecs"]):
        check_pod(group["template"])


def test_kubernetes_kuberay_and_serve_take_it() -> None:
    rayservice, service = manifests()
    check(rayservice)
    check_manifest(service)
    assert application_of(rayservice).import_path == "orchestrator.app:build"


def test_each_model_has_a_card_on_workers_of_its_label() -> None:
    rayservice, _ = manifests()
    settings: Settings = settings_of(application_of(rayservice).args)
    assert settings.drafter is not None
    for role, service in (("verifier", settings.verifier), ("drafter", settings.drafter)):
        group = groups_of(rayservice)[role]
        (container,) = group["template"]["spec"]["containers"]
        assert group["labels"].items() >= service.placement.node_labels.items()
        assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == service.placement.num_gpus == 1
        assert service.listen.host == "node"
        assert {port["containerPort"] for port in container["ports"]} >= {service.metrics.port}
        assert group["replicas"] == service.replicas


def test_clients_reach_the_pods_that_have_doors() -> None:
    rayservice, service = manifests()
    gateway = settings_of(application_of(rayservice).args).gateway
    group = groups_of(rayservice)["verifier"]
    (container,) = group["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert group["labels"].items() >= gateway.placement.node_labels.items()
    assert {name: float(count) for name, count in group["resources"].items()} == gateway.placement.resources
    assert service["spec"]["selector"] == group["template"]["metadata"]["labels"]
    assert [ports[one["targetPort"]] for one in service["spec"]["ports"]] == [gateway.http.port, gateway.grpc.port]
    assert service["metadata"]["name"] in gateway.http.hosts
    probe = container["readinessProbe"]["httpGet"]
    assert gateway.operations is not None
    assert (probe["path"], ports[probe["port"]]) == ("/readyz", gateway.operations.port)


def test_ray_asks_for_a_token_and_no_pod_is_root() -> None:
    rayservice, _ = manifests()
    cluster = cluster_of(rayservice)
    user, _, _ = list(instructions("USER"))[-1].partition(":")
    assert cluster["authOptions"] == {"mode": "token"}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        security = group["template"]["spec"]["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, int(user))
    drain_s = settings_of(application_of(rayservice).args).drain_s
    assert cluster["headGroupSpec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 2 * drain_s


def test_ray_is_the_version_of_the_image() -> None:
    rayservice, _ = manifests()
    (pinned,) = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert cluster_of(rayservice)["rayVersion"] == pinned
