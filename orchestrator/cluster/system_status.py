"""How an application on Ray Serve is: asked of Serve's controller, and of each replica that runs."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray

from orchestrator.cluster.answers import LOST, SERVE_NAMESPACE, answer_within, lines_of, serve_controller
from orchestrator.services.status import ANSWER_S, Load, NodeStatus, QueueStatus, ReplicaStatus, SystemStatus
from specgate.errors import ServiceUnavailable

RUNNING = "RUNNING"
Report = Mapping[str, Any]
"""What a replica says of itself, as plain values."""


def system_status(app_name: str) -> SystemStatus:
    """Return how the application is on the cluster that this process is connected to.

    Raises:
        ServiceUnavailable: Serve does not run there or does not answer, or serves no such application.
    """
    controller: Any = answer_within(ANSWER_S, serve_controller)
    if controller is None:
        raise ServiceUnavailable("Ray Serve does not run on this cluster")
    asked = controller.get_serve_instance_details.remote()
    applications: dict[str, Any] = answer_within(ANSWER_S, lambda: ray.get(asked))["applications"]
    if app_name not in applications:
        others = ", ".join(applications) or "none"
        raise ServiceUnavailable(f"this cluster serves no application {app_name!r} (app_name); it serves: {others}")
    application = applications[app_name]
    replicas = [
        replica for name, deployment in application["deployments"].items() for replica in _replicas(name, deployment)
    ]
    uptime_s = _since_s(application["last_deployed_time_s"])
    return SystemStatus(tuple(replicas), tuple(map(_node, answer_within(ANSWER_S, ray.nodes))), round(uptime_s, 1))


def metrics_targets(app_name: str, *, gateway_tls: bool) -> list[dict[str, object]]:
    """Return where the ``/metrics`` of each replica is; see ``targets_of``.

    Raises:
        ServiceUnavailable: see ``system_status``.
    """
    return targets_of(system_status(app_name).replicas, gateway_tls=gateway_tls)


def targets_of(replicas: Iterable[ReplicaStatus], *, gateway_tls: bool) -> list[dict[str, object]]:
    """Return where ``/metrics`` is, as Prometheus's HTTP service discovery has it.

    Args:
        gateway_tls: whether gateways serve theirs over HTTPS; services never do, so each target says what it speaks.
    """
    targets: list[dict[str, object]] = []
    for replica in replicas:
        if replica.metrics:
            labels = {"role": replica.role, "replica": replica.name}
            https = {"__scheme__": "https"} if gateway_tls and replica.role == "gateway" else {}
            targets.append({"targets": [replica.metrics], "labels": labels | https})
    return targets


def _replicas(deployment: str, details: dict[str, Any]) -> list[ReplicaStatus]:
    role, message, replicas = deployment.lower(), details.get("message", ""), details["replicas"]
    if not replicas:
        return [ReplicaStatus(role, "", "", details["status"], error=message or "it has no replica")]
    report = _ask([one["actor_name"] for one in replicas if one["state"] == RUNNING])
    return [_replica(role, one, report.get(one.get("actor_name"), message)) for one in replicas]


def _ask(actor_names: list[str]) -> dict[str, Report | str]:
    """Return what each replica says of itself, or why it says nothing. All are asked at once."""
    asked = {name: _asked(name) for name in actor_names}
    pending = [ref for ref in asked.values() if not isinstance(ref, str)]
    if pending:
        ray.wait(pending, num_returns=len(pending), timeout=ANSWER_S)
    return {name: ref if isinstance(ref, str) else _answer(ref) for name, ref in asked.items()}


def _asked(actor_name: str) -> Any:
    try:
        # By Serve's actor, because a call of the deployment waits for a place where all sessions are taken.
        return ray.get_actor(actor_name, namespace=SERVE_NAMESPACE).record_routing_stats.remote()
    except ValueError:
        return "it is gone"


def _answer(ref: Any) -> Report | str:
    try:
        return ray.get(ref, timeout=0) or "it reports nothing"
    except ray.exceptions.GetTimeoutError:
        return f"it does not answer within {ANSWER_S:g} s"
    except LOST as error:
        return lines_of(error)[-1]


def _replica(role: str, details: dict[str, Any], report: Report | str) -> ReplicaStatus:
    known = {
        "role": role,
        "name": details["replica_id"],
        "node": details.get("node_ip") or "",
        "state": details["state"],
        "uptime_s": round(_since_s(details["start_time_s"]), 1),
    }
    if isinstance(report, str):
        return ReplicaStatus(**known, error=report)
    known["metrics"] = report["metrics"]
    if role == "gateway":
        queue = QueueStatus(*(report[name] for name in QueueStatus.__slots__))
        return ReplicaStatus(**known, endpoints=tuple(report[door] for door in ("http", "grpc")), queue=queue)
    sessions, kv_tokens = (Load(*report[name]) for name in ("sessions", "kv_tokens"))
    known |= {"endpoints": (report["endpoint"],), "cards": tuple(report["cards"])}
    return ReplicaStatus(**known, sessions=sessions, kv_tokens=kv_tokens)


def _node(node: dict[str, Any]) -> NodeStatus:
    resources, labels = node["Resources"], node["Labels"]
    own = {name: value for name, value in labels.items() if not name.startswith("ray.io/")}
    address = node["NodeManagerAddress"]
    return NodeStatus(address, node["Alive"], resources.get("CPU", 0.0), resources.get("GPU", 0.0), own)


def _since_s(date_s: float) -> float:
    """Return the seconds since a date of Serve's, which is in those of the wall clock."""
    return time.time() - date_s
