"""Where Prometheus finds the ``/metrics`` of all replicas."""

from typing import Any

from orchestrator.cluster.system_status import targets_of
from orchestrator.services.status import ReplicaStatus


def test_a_gateway_with_tls_is_asked_by_https_and_the_services_are_not() -> None:
    replicas = [
        ReplicaStatus("verifier", "v1", "node", "RUNNING", metrics="10.0.0.1:9100"),
        ReplicaStatus("drafter", "", "", "UPDATING", error="it has no replica"),
        ReplicaStatus("gateway", "g1", "node", "RUNNING", metrics="10.0.0.2:9000"),
    ]
    verifier: dict[str, Any] = {"targets": ["10.0.0.1:9100"], "labels": {"role": "verifier", "replica": "v1"}}
    gateway: dict[str, Any] = {"targets": ["10.0.0.2:9000"], "labels": {"role": "gateway", "replica": "g1"}}
    assert targets_of(replicas, gateway_tls=False) == [verifier, gateway]
    gateway["labels"]["__scheme__"] = "https"
    assert targets_of(replicas, gateway_tls=True) == [verifier, gateway]
