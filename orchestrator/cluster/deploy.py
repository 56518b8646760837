"""One application on a cluster: deployed, watched until it serves, drained."""

import errno
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.deployment import Application
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from orchestrator.api.settings.listen import Listen
from orchestrator.api.settings.settings import Settings
from orchestrator.cluster.answers import answer_within
from orchestrator.cluster.progress import Stages, start_board
from orchestrator.cluster.replica import STOP_GRACE_S
from specgate.errors import InvalidArgument, ServiceUnavailable

POLL_S = 0.2
DOOR_S = 20.0
"""How long a running gateway may take to return its endpoints."""
WATCH_S = 2.0
STATUS_S = 15.0
"""How long Serve's controller may take to return the application's status; it may be restarting."""
DELETE_S = 30.0
"""How long Serve may take, beyond the drain times, to delete an application."""
OUR_ERRORS = "specgate.errors."

OnStages = Callable[[Stages], None]
"""Called repeatedly with the stage of each replica."""


@dataclass(frozen=True, slots=True)
class GatewayEndpoints:
    """The HTTP URL and the gRPC HOST:PORT of every gateway; gateways that share a port are one entry."""

    http: tuple[str, ...]
    grpc: tuple[str, ...]


class ServedApplication:
    """One application with ``settings`` on the cluster of this process."""

    def __init__(self, settings: Settings, application: Application) -> None:
        self._settings = settings
        self._name = settings.app_name
        self._application = application
        self._deployed = False

    def start(self, show: OnStages) -> GatewayEndpoints:
        """Deploy, and return once both APIs answer.

        Raises:
            InvalidArgument: a door's port is in use.
            ServiceUnavailable: a replica cannot start; the message says why.
        """
        gateway = self._settings.gateway
        _check_free("gateway.http.port", gateway.http)
        _check_free("gateway.grpc.port", gateway.grpc)
        board = start_board(self._name)
        try:
            # Our doors are the gateways' own.
            serve.start(proxy_location="Disabled")
            if self._name in serve.status().applications:
                hint = "end that one, or give this one another app_name"
                raise ServiceUnavailable(f"this cluster already serves an application {self._name!r}: {hint}")
            self._deployed = True
            target = serve.RunTarget(target=self._application, name=self._name, route_prefix=None)
            serve.run_many([target], wait_for_applications_running=False)
        except (RayError, RayServeException, RuntimeError, ValueError) as error:
            raise ServiceUnavailable(f"Ray Serve refuses the application: {_cause(str(error))}") from None
        self._wait_running(board, show)
        return self._endpoints()

    def _wait_running(self, board: Any, show: OnStages) -> None:
        while True:
            show(_stages(board))
            application = serve.status().applications.get(self._name)
            if application is not None and application.status is ApplicationStatus.RUNNING:
                # A replica may have reported its last stage between the two questions.
                show(_stages(board))
                return
            if application is not None and application.status is ApplicationStatus.DEPLOY_FAILED:
                messages = [one.message for one in application.deployments.values()]
                raise ServiceUnavailable(f"the application did not start: {_cause(*messages, application.message)}")
            time.sleep(POLL_S)

    def _endpoints(self) -> GatewayEndpoints:
        gateways = serve.get_app_handle(self._name)
        endpoints = gateways.broadcast("endpoints").results(timeout_s=DOOR_S)
        scheme = "https" if self._settings.gateway.http.tls else "http"
        http, grpc = (tuple(dict.fromkeys(one)) for one in zip(*endpoints, strict=True))
        return GatewayEndpoints(tuple(f"{scheme}://{endpoint}" for endpoint in http), grpc)

    def wait(self, stop: threading.Event) -> None:
        """Return once ``stop`` is set.

        Raises:
            ServiceUnavailable: the cluster is gone, or somebody has deleted the application.
        """
        while not stop.wait(WATCH_S):
            try:
                there = self._name in answer_within(STATUS_S, serve.status).applications
            except ServiceUnavailable:
                # There is nothing left to drain.
                self._deployed = False
                raise
            if not there:
                self._deployed = False
                raise ServiceUnavailable(f"the application {self._name} was taken off the cluster")

    def stop(self) -> None:
        """Let running requests end, within the drain time, and delete the application, if this object deployed it."""
        if not self._deployed:
            return
        drain_s = self._settings.drain_s
        # This is first, because Serve tells a gateway to stop only after its HTTP requests have ended.
        with suppress(ServiceUnavailable):
            answer_within(drain_s + STOP_GRACE_S, self._drain)
        # A cluster that is gone took the application with it.
        with suppress(ServiceUnavailable):
            answer_within(2 * drain_s + DELETE_S, lambda: serve.delete(self._name))

    def _drain(self) -> None:
        serve.get_app_handle(self._name).broadcast("drain").results(timeout_s=self._settings.drain_s + STOP_GRACE_S)


def _stages(board: Any) -> Stages:
    """Return the stage of each replica. Raises ServiceUnavailable if the cluster is gone."""
    try:
        return cast(Stages, ray.get(board.read.remote()))
    except RayError as error:
        raise ServiceUnavailable(
            f"the Ray cluster was lost while the application started: {_cause(str(error))}"
        ) from None


def with_ports(settings: Settings) -> Settings:
    """Return the settings with a free port in the place of each 0, where all gateways run on this machine.

    So a gateway that is replaced comes back where its clients look for it.
    """
    if len(ray.nodes()) > 1:
        return settings
    doors = {name: _with_port(getattr(settings.gateway, name)) for name in ("http", "grpc")}
    return settings.model_copy(update={"gateway": settings.gateway.model_copy(update=doors)})


def _with_port(listen: Listen) -> Listen:
    if listen.port:
        return listen
    with socket.create_server((listen.host, 0), family=listen.family) as free:
        return listen.model_copy(update={"port": free.getsockname()[1]})


def _check_free(field: str, listen: Listen) -> None:
    """Raise InvalidArgument where somebody listens already: gateways share a port with whoever lets them."""
    if not listen.port or len(ray.nodes()) > 1:
        return
    try:
        socket.create_server((listen.host, listen.port), family=listen.family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InvalidArgument(field, f"{listen.port} on {listen.host} is in use") from None


def _cause(*messages: str) -> str:
    """Return the line that names the cause: the last of our own errors, else the last line there is."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    ours = [line.partition(OUR_ERRORS)[2] for line in lines if OUR_ERRORS in line]
    return (ours or lines or ["it does not say why"])[-1]
