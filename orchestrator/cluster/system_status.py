"""How an application on Ray Serve is: asked of Serve's controller, and of each replica that runs."""

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client

from orchestrator.cluster.answers import LOST, answer_within
from orchestrator.services.status import ANSWER_S, Load, NodeStatus, Queue, ReplicaStatus, SystemStatus
from specgate.errors import ServiceUnavailable

RUNNING = "RUNNING"
Told = Mapping[str, Any]
"""What a replica says of itself, as plain values."""


def system_status(app_name: str) -> SystemStatus:
    """Return how the application is on the cluster that this process is connected to.

    Raises:
        ServiceUnavailable: Serve does not run there or does not answer, or serves no such application.
    """
    client: Any = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        raise ServiceUnavailable("Ray Serve does not run on this cluster")
    applications: dict[str, Any] = answer_within(ANSWER_S, client.get_serve_details)["applications"]
    if app_name not in applications:
        others = ", ".join(applications) or "none"
        raise ServiceUnavailable(f"this cluster serves no application {app_name!r} (app_name); it serves: {others}")
    application = applications[app_name]
    replicas = [
        replica
        for name, deployment in application["deployments"].items()
        for replica in _replicas(app_name, name, deployment)
    ]
    uptime_s = time.time() - application["last_deployed_time_s"]
    return SystemStatus(tuple(replicas), tuple(map(_node, ray.nodes())), round(uptime_s, 1))


def _replicas(app_name: str, deployment: str, details: dict[str, Any]) -> list[ReplicaStatus]:
    role, message = deployment.lower(), details.get("message", "")
    if not details["replicas"]:
        return [ReplicaStatus(role, "", "", details["status"], error=message or "it has no replica")]
    running = [one["replica_id"] for one in details["replicas"] if one["state"] == RUNNING]
    told, silence = _ask(app_name, deployment) if running else ({}, "")
    if len(running) == len(told) == 1:
        told = dict(zip(running, told.values(), strict=True))
    return [
        _replica(role, one, told.get(one["replica_id"]), silence if one["state"] == RUNNING else message)
        for one in details["replicas"]
    ]


def _ask(app_name: str, deployment: str) -> tuple[dict[str, Told], str]:
    """Return what each replica says, by its name, and why another one says nothing."""
    silence = f"it does not answer within {ANSWER_S:g} s"
    try:
        answers = serve.get_deployment_handle(deployment, app_name).broadcast("status")
        results = answers.results(timeout_s=ANSWER_S, return_exceptions=True)
    except LOST as error:
        results = [error]
    told: dict[str, Told] = {str(one.get("replica", "")): one for one in results if isinstance(one, dict)}
    reasons = [str(one).strip().splitlines()[-1] for one in results if isinstance(one, Exception) and str(one).strip()]
    return told, (reasons or [silence])[0]


def _replica(role: str, details: dict[str, Any], told: Told | None, silence: str) -> ReplicaStatus:
    known = {
        "role": role,
        "name": details["replica_id"],
        "node": details.get("node_ip") or "",
        "state": details["state"],
        "uptime_s": round(time.time() - details["start_time_s"], 1),
    }
    if told is None:
        return ReplicaStatus(**known, error=silence)
    if role == "gateway":
        queue = Queue(*(told[name] for name in Queue.__slots__))
        return ReplicaStatus(**known, endpoints=tuple(told[door] for door in ("http", "grpc")), queue=queue)
    sessions, kv_tokens = (Load(*told[name]) for name in ("sessions", "kv_tokens"))
    return ReplicaStatus(**known, endpoints=(told["endpoint"],), sessions=sessions, kv_tokens=kv_tokens)


def _node(node: dict[str, Any]) -> NodeStatus:
    resources, labels = node["Resources"], node["Labels"]
    own = {name: value for name, value in labels.items() if not name.startswith("ray.io/")}
    address = node["NodeManagerAddress"]
    return NodeStatus(address, node["Alive"], resources.get("CPU", 0.0), resources.get("GPU", 0.0), own)
