"""The served system as one Ray Serve application: gateways in front of the two model deployments.

Ray Serve places, counts and replaces replicas. Clients reach the gateways at doors of their own, past Serve's proxies.

``build`` is what ``orchestrator serve``, ``serve run``, ``serve deploy`` and KubeRay's RayService all deploy.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.deployment import Application
from ray.serve.handle import DeploymentHandle

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.http.routes import make_app, make_operations_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.metrics.leases import LeaseWaits, TimedPool
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import HttpSettings
from orchestrator.api.settings.settings import BUNDLED_TARGET, DrafterSettings, ServiceSettings, Settings, settings_of
from orchestrator.cluster.logs import configure_replica_logs
from orchestrator.cluster.pool import DRAFTER_WAIT_S, REST_S, ServePool
from orchestrator.cluster.progress import reporter
from orchestrator.cluster.replica import LOGGING, STOP_GRACE_S, actor_options, scaling_options, service_application
from orchestrator.cluster.running import Replicas, wait_for_successor
from orchestrator.cluster.scaling import POLICY, REQUESTS
from orchestrator.cluster.system_status import metrics_targets
from orchestrator.decode.ports import Pool
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.services.discovery import ask_verifier, tokenizer_of
from orchestrator.services.pool import StaticPool, grpc_health
from orchestrator.services.timeouts import LOADING_S, Timeouts
from specgate import tracing
from specgate.errors import ModelLoadError, ServiceUnavailable
from specgate.garbage import freeze_loaded
from specgate.rpc.tls import ClientTlsFiles
from specgate.types import ModelInfo

Handle = DeploymentHandle[Any]
CUT_GRACE_S = 1.0
"""Time for the error to reach the requests that the drain time cuts, before the gRPC API ends its calls."""

_log = logging.getLogger(__name__)


class Gateway:
    """The doors, and the decode loop behind them.

    It has no health check of its own: Serve then watches its event loop, which is all that could be stuck.

    Args:
        settings: a ``Settings`` as plain values.
        verifiers, drafters: deployments that give out leases; None where the settings name endpoints, or no drafter.
    """

    # Serve awaits it.
    async def __init__(  # type: ignore[misc]
        self, settings: dict[str, Any], verifiers: Handle | None, drafters: Handle | None
    ) -> None:
        self._settings = settings_of(settings)
        configure_replica_logs("gateway", self._settings.logs)
        traces = self._settings.traces
        if traces.endpoint is not None:
            tracing.configure("specgate-gateway", traces.endpoint, traces.sample)
        waits = LeaseWaits()
        orchestrator = await _connected(self._settings, verifiers, drafters, waits)
        gateway = self._settings.gateway
        self._request_queue = RequestQueue(orchestrator, gateway, self._settings.defaults, self._settings.model_name)
        self._request_queue.metrics.registry.register(waits)
        # Serve knows which of its replicas run; asking one of them would take a lease, and wait where all are taken.
        probe = None if verifiers is None else Replicas("verifier", verifiers).check
        separate = gateway.operations
        on_refused = self._request_queue.metrics.requests.rejected
        keyring = None if gateway.keys_file is None else Keyring(gateway.keys_file, on_refused)
        hosts = gateway.http.hosts
        app = make_app(
            self._request_queue,
            probe,
            self._targets,
            keyring,
            hosts=(gateway.http.host, *hosts),
            has_metrics=separate is None,
            has_page=gateway.page,
        )
        # With one gateway too: in a rolling update the new one starts while the old one still holds the port.
        self._http = HttpServer(app, gateway.http, reuse_port=gateway.http.port > 0)
        drain_s = self._settings.drain_s + CUT_GRACE_S
        self._grpc = GrpcApi(
            self._request_queue, gateway.grpc, keyring, reuse_port=gateway.grpc.port > 0, drain_s=drain_s
        )
        self._operations: HttpServer | None = None
        if separate is not None:
            app = make_operations_app(self._request_queue, probe, self._targets, (separate.host, *hosts))
            self._operations = HttpServer(app, HttpSettings(**separate.model_dump()), reuse_port=separate.port > 0)
            await self._operations.start()
        await self._http.start()
        await self._grpc.start()
        freeze_loaded()

    async def _targets(self) -> list[dict[str, object]]:
        gateway = self._settings.gateway
        gateway_tls = (gateway.operations or gateway.http).tls is not None
        return await asyncio.to_thread(metrics_targets, self._settings.app_name, gateway_tls=gateway_tls)

    async def endpoints(self) -> tuple[str, str]:
        """Return HOST:PORT of the HTTP and of the gRPC API."""
        return self._http.endpoint, self._grpc.endpoint

    async def record_routing_stats(self) -> dict[str, Any]:
        """Return what ``orchestrator status`` asks. Serve calls this beside a replica's requests, so it never waits."""
        queue, limits = self._request_queue, self._settings.gateway
        return {
            "http": self._http.endpoint,
            "grpc": self._grpc.endpoint,
            "metrics": (self._operations or self._http).endpoint,
            "running": queue.num_running,
            "waiting": queue.num_waiting,
            "max_running": limits.max_running,
            "max_queued": limits.max_queued,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell Serve what it scales gateways by."""
        return {REQUESTS: float(self._request_queue.num_inside)}

    async def drain(self) -> None:
        """Refuse new requests at both APIs at once; return when the running ones have ended, or had their time."""
        drain_s = self._settings.drain_s + CUT_GRACE_S
        await asyncio.gather(self._drain_queue(), self._http.drain(drain_s), self._grpc.drain())

    async def _drain_queue(self) -> None:
        if not await self._request_queue.drain(self._settings.drain_s):
            # The requests that are left get an error with the last token's index instead of a lost connection.
            await self._request_queue.orchestrator.close()

    async def __del__(self) -> None:
        """Serve calls and awaits this when the replica is stopped."""
        if hasattr(self, "_grpc"):
            if not self._request_queue.draining:
                await wait_for_successor(self._settings.drain_s)
            await self.drain()
            if self._operations is not None:
                await self._operations.drain(0.0)
            tracing.shut_down()
            await self._request_queue.orchestrator.close()


def build(args: Mapping[str, Any]) -> Application:
    """Return the application that ``args`` describe: settings as in the YAML, what they leave out is default.

    Raises:
        InvalidArgument: a key is unknown or its value out of range; names the key.
    """
    settings = settings_of(args)
    gateway = settings.gateway
    deployment = serve.deployment(
        name="Gateway",
        **scaling_options(gateway.replicas, gateway.autoscaling, POLICY),
        # Serve kills the replica so long after it asked it to stop, and in that time the gateway does one after the
        # other: it goes on until there is another one, then it drains. One drain time for each.
        graceful_shutdown_timeout_s=2 * settings.drain_s + STOP_GRACE_S,
        ray_actor_options=actor_options(gateway.placement),
        logging_config=LOGGING,
    )(Gateway)
    services = [_application(role, settings) for role in ("verifier", "drafter")]
    return deployment.bind(settings.model_dump(mode="json"), *services)


def _application(role: str, settings: Settings) -> Application | None:
    service: ServiceSettings | None = getattr(settings, role)
    if service is None or service.endpoints:
        return None
    if isinstance(service, DrafterSettings) and service.target_tokenizer is None:
        target = settings.verifier
        of_target = None if _only_has_an_address(target) else target.tokenizer or target.model or None
        service = service.model_copy(update={"target_tokenizer": of_target})
    return service_application(role, service, settings.drain_s, settings.logs, settings.traces.endpoint)


async def _connected(
    settings: Settings, verifiers: Handle | None, drafters: Handle | None, waits: LeaseWaits
) -> Orchestrator:
    """Wait for the first verifier; a drafter may come later.

    Raises:
        ServiceUnavailable: there was no verifier for a very long time.
        TokenizerMismatch, InvalidArgument: the services do not fit together.
    """
    reporter()("waiting for a verifier", 0, 1)
    give_up_at_s = time.monotonic() + LOADING_S
    while True:
        try:
            return await _connect(settings, verifiers, drafters, waits)
        except ServiceUnavailable as error:
            if time.monotonic() > give_up_at_s:
                raise
            _log.info("waiting on: %s", error)


async def _connect(
    settings: Settings, verifiers: Handle | None, drafters: Handle | None, waits: LeaseWaits
) -> Orchestrator:
    tls = _client_tls(settings)
    wait_s = settings.verifier_wait_s
    pool: Pool = TimedPool("verifier", _pool("verifier", settings.verifier, verifiers, wait_s, tls), waits)
    tokenizer = await _tokenizer(settings.verifier, pool, tls)
    draft_pool: Pool | None = None
    if settings.drafter is not None:
        draft_pool = TimedPool("drafter", _pool("drafter", settings.drafter, drafters, DRAFTER_WAIT_S, tls), waits)
    timeouts, defaults = Timeouts(failover_s=wait_s), settings.defaults
    price = defaults.drafter_price if defaults.objective == "cost" else None
    return await Orchestrator.connect(pool, draft_pool, tokenizer, tls=tls, timeouts=timeouts, drafter_price=price)


def _pool(
    role: str, service: ServiceSettings, handle: Handle | None, wait_s: float, tls: ClientTlsFiles | None
) -> Pool:
    if handle is None:
        return StaticPool(service.endpoints, grpc_health(tls), field=f"{role}.endpoints")
    return ServePool(role, handle, wait_s, rest_s=REST_S if role == "drafter" else 0.0)


def _client_tls(settings: Settings) -> ClientTlsFiles | None:
    tls = settings.services_tls
    return ClientTlsFiles(tls.ca, tls.certificate, tls.key, tls.server_name) if tls else None


def _only_has_an_address(verifier: ServiceSettings) -> bool:
    """Return whether the settings name no model of a verifier that runs: it is the one that the verifier serves."""
    return bool(verifier.endpoints) and verifier.model == BUNDLED_TARGET


async def _tokenizer(verifier: ServiceSettings, pool: Pool, tls: ClientTlsFiles | None) -> TextTokenizer | None:
    """Return the target's tokenizer, None where this node does not have it."""
    if _only_has_an_address(verifier):
        return await _served_tokenizer(await ask_verifier(pool, tls))
    try:
        return await asyncio.to_thread(TextTokenizer.load, verifier.model, verifier.tokenizer)
    except ModelLoadError as error:
        _log.warning("prompts are token ids alone: %s", error)
        return None


async def _served_tokenizer(served: ModelInfo) -> TextTokenizer | None:
    tokenizer = await asyncio.to_thread(tokenizer_of, served, BUNDLED_TARGET)
    if tokenizer is None:
        problem = "prompts are token ids alone: the tokenizer of %s, which the verifier serves, was not found here; "
        _log.warning(problem + "name its folder in verifier.model", served.model)
    return tokenizer
