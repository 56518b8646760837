"""deploy/helm/specgate: what Helm and Kubernetes' schemas say of it, with the values that change most."""

from typing import Any

import pytest

from tests.deploy.charts import RefusedByHelm, rendered
from tests.deploy.containers import Values
from tests.deploy.schemas import check_manifest

ALL: Values = {
    "image": {"repository": "registry.example/specgate", "tag": "cuda", "pullSecrets": ["registry"]},
    "models": {"claim": "models", "hubTokenSecret": "hub"},
    "verifier": {"model": "/models/target", "gpus": 1, "args": ["--kv-tokens=65536"]},
    "drafter": {"model": "/models/draft", "gpus": 1, "args": ["--run-ahead=0"]},
    "gateway": {"settings": {"defaults": {"max_tokens": 64}, "gateway": {"max_queued": 128}}},
    "keys": {"secret": "keys"},
    "tls": {"secret": "tls"},
    "service": {"type": "LoadBalancer"},
    "podAnnotations": {"example.com/team": "serving"},
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "runtimeClassName": "nvidia",
    "keda": {"enabled": True, "prometheus": "http://prometheus:9090"},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}
VARIANTS: dict[str, Values] = {
    "defaults": {},
    "all": ALL,
    "target alone": {"drafter": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "suffix": {"drafter": {"method": "suffix"}, "strategy": {"type": "Recreate", "rollingUpdate": None}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_helm_renders_it_and_kubernetes_takes_it(name: str) -> None:
    for manifest in rendered(VARIANTS[name]).manifests:
        check_manifest(manifest)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"replica": 2}, "replica"),
        ({"verifier": {"gpu": 1}}, "gpu"),
        ({"verifier": {"gpus": "1"}}, "gpus"),
        ({"drafter": {"method": "layer-skip"}}, "method"),
        ({"drafter": {"args": ["run-ahead 0"]}}, "args"),
        ({"keys": "keys.yaml"}, "keys"),
        ({"service": {"httpPort": 0}}, "httpPort"),
        ({"keda": {"enabled": True}}, "prometheus"),
        ({"keda": {"minReplicas": 0}}, "minReplicas"),
        ({"verifier": {"model": "/models/target"}}, "drafter.model"),
    ],
)
def test_values_that_are_wrong_are_named(values: Values, key: str) -> None:
    with pytest.raises(RefusedByHelm, match=key):
        rendered(values)


def test_values_arrive_where_they_are_meant_to() -> None:
    found, by_default = rendered(ALL), rendered()
    for role in ("verifier", "drafter"):
        assert found.containers[role]["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert "nvidia.com/gpu" not in by_default.containers[role]["resources"]["limits"]
    assert {one["image"] for one in found.containers.values()} == {"registry.example/specgate:cuda"}
    volumes: dict[str, Any] = {volume.pop("name"): volume for volume in found.pod["volumes"]}
    assert volumes["models"] == {"persistentVolumeClaim": {"claimName": "models"}}
    assert volumes["keys"] == {"secret": {"secretName": "keys"}}
    # KEDA counts the replicas itself; a number here would be set back at each upgrade.
    assert "replicas" not in found.of("Deployment")["spec"]
    assert by_default.of("Deployment")["spec"]["replicas"] == 1
    assert "no keys.secret" in by_default.notes
    assert "no keys.secret" not in found.notes
