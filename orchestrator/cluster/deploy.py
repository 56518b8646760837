"""One application's life on a cluster: deployed, watched until it serves, drained."""

import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.deployment import Application
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from orchestrator.api.settings.listen import Listen
from orchestrator.api.settings.settings import Settings
from orchestrator.cluster.answers import answer_within
from orchestrator.cluster.progress import Stages, start_board
from orchestrator.cluster.replica import STOP_GRACE_S
from specgate.errors import ServiceUnavailable
from specgate.rpc.endpoint import join_endpoint

POLL_S = 0.2
DOOR_S = 20.0
"""How long Serve's proxy may take to answer for an application that runs."""
ANSWER_S = 5.0
WATCH_S = 2.0
STATUS_S = 15.0
"""How long Serve's controller may take to say how the application is; it may be starting anew."""
DELETE_S = 30.0
"""How long Serve may take, beyond the drain times, to take an application off."""
OUR_ERRORS = "specgate.errors."

OnStages = Callable[[Stages], None]
"""Called, again and again, with the stage that every replica is in."""


@dataclass(frozen=True, slots=True)
class GatewayEndpoints:
    """Where clients go: the HTTP URL, and HOST:PORT of the gRPC door of every gateway."""

    http: str
    grpc: tuple[str, ...]


class Served:
    """One application, made of ``settings``, on the cluster that this process is connected to."""

    def __init__(self, settings: Settings, application: Application) -> None:
        self._settings = settings
        self._name = settings.app_name
        self._http = _with_port(settings.gateway.http)
        self._application = application
        self._deployed = False

    def start(self, show: OnStages) -> GatewayEndpoints:
        """Deploy, and return once both doors answer.

        Raises:
            ServiceUnavailable: a replica cannot start, or the HTTP door is not where it was asked for; says why.
        """
        board = start_board(self._name)
        try:
            _start_serve(_http_options(self._http))
            if self._name in serve.status().applications:
                hint = "end that one, or `serve shutdown`"
                raise ServiceUnavailable(f"this cluster already serves an application {self._name!r}: {hint}")
            self._deployed = True
            serve.run_many(
                [serve.RunTarget(target=self._application, name=self._name)], wait_for_applications_running=False
            )
        except (RayError, RayServeException, RuntimeError, ValueError) as error:
            raise ServiceUnavailable(f"Ray Serve refuses the application: {_cause(str(error))}") from None
        self._wait_running(board, show)
        apis = GatewayEndpoints(_url(self._http), self._grpc_endpoints())
        _wait_for_api(apis.http)
        return apis

    def _wait_running(self, board: Any, show: OnStages) -> None:
        while True:
            show(ray.get(board.read.remote()))
            application = serve.status().applications.get(self._name)
            if application is not None and application.status is ApplicationStatus.RUNNING:
                # The last that a replica told may have come between the two questions.
                show(ray.get(board.read.remote()))
                return
            if application is not None and application.status is ApplicationStatus.DEPLOY_FAILED:
                messages = [one.message for one in application.deployments.values()]
                raise ServiceUnavailable(f"the application did not start: {_cause(*messages, application.message)}")
            time.sleep(POLL_S)

    def _grpc_endpoints(self) -> tuple[str, ...]:
        gateways = serve.get_app_handle(self._name)
        return tuple(gateways.broadcast("grpc_endpoint").results(timeout_s=DOOR_S))

    def wait(self, stop: threading.Event) -> None:
        """Return once ``stop`` is set.

        Raises:
            ServiceUnavailable: the cluster is gone, or the application was taken off it.
        """
        while not stop.wait(WATCH_S):
            try:
                there = self._name in answer_within(STATUS_S, serve.status).applications
            except ServiceUnavailable:
                # There is nothing left to drain, and nobody to ask for it.
                self._deployed = False
                raise
            if not there:
                self._deployed = False
                raise ServiceUnavailable(f"the application {self._name} was taken off the cluster")

    def stop(self) -> None:
        """Let running requests end, within the drain time, and take the application off, if it is ours."""
        if not self._deployed:
            return
        drain_s = self._settings.drain_s
        # First, because a gateway that Serve stops is told so only when its HTTP requests have ended.
        with suppress(ServiceUnavailable):
            answer_within(drain_s + STOP_GRACE_S, self._drain)
        # A cluster that is gone took the application with it.
        with suppress(ServiceUnavailable):
            answer_within(2 * drain_s + DELETE_S, lambda: serve.delete(self._name))

    def _drain(self) -> None:
        serve.get_app_handle(self._name).broadcast("drain").results(timeout_s=self._settings.drain_s + STOP_GRACE_S)


def _start_serve(options: dict[str, Any]) -> None:
    """Start Serve, unless it runs. Raises ServiceUnavailable where it runs with another HTTP address or TLS."""
    serve.start(http_options=options)
    # Serve keeps what it was first started with, and says so in its log alone.
    client: Any = _get_global_client()
    running = client.http_config
    different = {key: getattr(running, key) for key, value in options.items() if getattr(running, key) != value}
    if different:
        are = ", ".join(f"{key} {value}" for key, value in different.items())
        raise ServiceUnavailable(f"Ray Serve already runs here with {are}: `serve shutdown` first")


def _with_port(listen: Listen) -> Listen:
    """Serve takes no port 0: find a free one for it."""
    if listen.port:
        return listen
    with socket.create_server((listen.host, 0)) as free:
        return listen.model_copy(update={"port": free.getsockname()[1]})


def _http_options(listen: Listen) -> dict[str, Any]:
    options: dict[str, Any] = {"host": listen.host, "port": listen.port}
    if listen.tls is not None:
        options["ssl_certfile"], options["ssl_keyfile"] = str(listen.tls.certificate), str(listen.tls.key)
        options["ssl_ca_certs"] = str(listen.tls.client_ca) if listen.tls.client_ca else None
    return options


def _url(listen: Listen) -> str:
    return f"{'https' if listen.tls else 'http'}://{join_endpoint(listen.host, listen.port)}"


def _wait_for_api(url: str) -> None:
    """Return once the application answers at ``url``. One behind TLS is taken at its word: it may trust us not."""
    give_up_at_s = time.monotonic() + DOOR_S
    # Past any http_proxy of the environment: the door is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while url.startswith("http:"):
        try:
            with opener.open(f"{url}/healthz", timeout=ANSWER_S):
                return
        except OSError:
            if time.monotonic() > give_up_at_s:
                hint = "Ray Serve keeps the HTTP address that it was first started with: `serve shutdown` first"
                raise ServiceUnavailable(f"nothing answers at {url}; {hint}") from None
        time.sleep(POLL_S)


def _cause(*messages: str) -> str:
    """Return the line that names the cause: the last of our own errors, else the last line there is."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    ours = [line.partition(OUR_ERRORS)[2] for line in lines if OUR_ERRORS in line]
    return (ours or lines or ["it does not say why"])[-1]
