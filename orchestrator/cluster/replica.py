"""The two deployments of models: a replica runs one gRPC service, and leases its sessions."""

import logging
import os
from collections.abc import AsyncGenerator
from typing import Any

import ray
from ray import serve
from ray.serve.deployment import Application

from orchestrator.api.settings.listen import NODE
from orchestrator.api.settings.replicas import Autoscaling, LogSettings, Placement
from orchestrator.api.settings.settings import DrafterSettings, ServiceSettings
from orchestrator.cluster.logs import configure_replica_logs
from orchestrator.cluster.progress import reporter
from orchestrator.services.status import loads_of
from specgate.garbage import freeze_loaded
from specgate.service.config import ServiceConfig, config_of
from specgate.service.leases import LeaseBook
from specgate.service.replica import Replica
from specgate.service.settings import settings_class

HEALTH_CHECK_PERIOD_S = 2.0
HEALTH_CHECK_TIMEOUT_S = 5.0
"""A replica that misses three checks is replaced: so a hanging one is found in some 20 s."""
STOP_GRACE_S = 5.0
"""Beyond the drain time, for the rest of a gateway's orderly end."""
LOGGING = {"enable_access_log": False}
"""Most of the log would be one line per lease or request."""

_log = logging.getLogger(__name__)


class ServiceReplica:
    """One drafter or verifier. Serve counts a lease as one ongoing request, and so as one session.

    Args:
        role: "drafter" or "verifier".
        settings: a ``ServiceSettings`` as plain values.
        drain_s: how long running sessions get when the replica is stopped.
        logs: a ``LogSettings`` as plain values.
        traces_endpoint: of the collector, None for none.
    """

    # Serve awaits it.
    async def __init__(  # type: ignore[misc]
        self,
        role: str,
        settings: dict[str, Any],
        drain_s: float,
        logs: dict[str, Any],
        traces_endpoint: str | None = None,
    ) -> None:
        configure_replica_logs(role, LogSettings.model_validate(logs))
        self._leases = LeaseBook()
        kind = DrafterSettings if role == "drafter" else ServiceSettings
        config = _config(role, kind.model_validate(settings), drain_s, traces_endpoint)
        self._replica = Replica(role, config, self._leases)
        report = reporter()

        def on_notice(text: str) -> None:
            # Nobody may be watching the progress.
            _log.warning("%s", text)
            report(text, 0, 0)

        await self._replica.start(report, on_notice)
        freeze_loaded()

    async def lease(self) -> AsyncGenerator[tuple[str, str], None]:
        """Yield the endpoint and a one-time token; end with the session, or soon where none is opened."""
        with self._leases.issued() as lease:
            yield self._replica.endpoint, lease.token
            await lease.wait_ended()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Return where it listens, its cards, and its sessions and KV tokens, each as used and most.

        Serve calls this method outside of the request queue, so it is answered even if all sessions are taken.
        """
        sessions, kv_tokens = loads_of(self._replica.info())
        return {
            "endpoint": self._replica.endpoint,
            "metrics": self._replica.metrics_endpoint or "",
            "cards": _visible_cards(),
            "sessions": (sessions.used, sessions.max),
            "kv_tokens": (kv_tokens.used, kv_tokens.max),
        }

    async def check_health(self) -> None:
        """See ``specgate.service.replica``. Serve replaces a replica that fails this three times in a row."""
        self._replica.check_health()


def service_application(
    role: str,
    settings: ServiceSettings,
    drain_s: float,
    logs: LogSettings | None = None,
    traces_endpoint: str | None = None,
) -> Application:
    """Return the deployment of ``role``, bound to its settings."""
    deployment = serve.deployment(
        name=role.capitalize(),
        max_ongoing_requests=settings.max_sessions,
        max_queued_requests=settings.max_queued_sessions,
        graceful_shutdown_timeout_s=drain_s,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        ray_actor_options=actor_options(settings.placement, has_model=settings.has_model),
        logging_config=LOGGING,
        **scaling_options(settings.replicas, settings.autoscaling),
    )(ServiceReplica)
    of_logs = (logs or LogSettings()).model_dump(mode="json")
    return deployment.bind(role, settings.model_dump(mode="json"), drain_s, of_logs, traces_endpoint)


def actor_options(placement: Placement, *, has_model: bool = True) -> dict[str, Any]:
    """Return a replica's resources, as Ray takes them. Without a model it gets no card unless the settings say so."""
    num_gpus = placement.num_gpus
    if num_gpus is None:
        num_gpus = 1.0 if has_model and ray.is_initialized() and ray.cluster_resources().get("GPU", 0) else 0.0
    options: dict[str, Any] = {"num_cpus": placement.num_cpus, "num_gpus": num_gpus}
    if placement.resources:
        options["resources"] = placement.resources
    if placement.node_labels:
        options["label_selector"] = placement.node_labels
    return options


def scaling_options(replicas: int, autoscaling: Autoscaling | None, policy: str | None = None) -> dict[str, Any]:
    """Return the number of replicas, as Serve takes it.

    Args:
        policy: import path of the policy that decides; by default Serve's own, which counts requests by its handles.
    """
    if autoscaling is None:
        return {"num_replicas": replicas}
    options: dict[str, Any] = {
        "min_replicas": autoscaling.min_replicas,
        "max_replicas": autoscaling.max_replicas,
        "target_ongoing_requests": autoscaling.target_sessions,
    }
    if policy is not None:
        options["policy"] = {"policy_function": policy}
    return {"autoscaling_config": options}


def _visible_cards() -> list[str]:
    """Return the cards that Ray lets this process see; none where Ray hides none."""
    return [card for card in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if card]


def _address(host: str) -> str:
    return ray.util.get_node_ip_address() if host == NODE else host


def _config(role: str, settings: ServiceSettings, drain_s: float, traces_endpoint: str | None) -> ServiceConfig:
    listen, tls, metrics = settings.listen, settings.listen.tls, settings.metrics
    return config_of(
        role,
        **settings.model_dump(include=set(settings_class(role).model_fields)),
        host=_address(listen.host),
        port=listen.port,
        **({} if metrics is None else {"metrics_host": _address(metrics.host), "metrics_port": metrics.port}),
        tls_certificate=str(tls.certificate) if tls else None,
        tls_key=str(tls.key) if tls else None,
        tls_client_ca=str(tls.client_ca) if tls and tls.client_ca else None,
        # One flag of the service for both: the settings have checked each for itself.
        insecure=listen.insecure or (metrics is not None and metrics.insecure),
        drain_s=drain_s,
        traces_endpoint=traces_endpoint,
    )
