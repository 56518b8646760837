"""The gRPC server that both services, and the gateway, are served by: bind, health, reflection, drain."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specgate.errors import InvalidArgument
from specgate.rpc.endpoint import join_endpoint
from specgate.rpc.health import EngineHealth
from specgate.rpc.interceptors import Admission, ErrorInterceptor, Handler, Phase
from specgate.rpc.request_id import RequestIdInterceptor
from specgate.rpc.server_options import ServerOptions, channel_arguments
from specgate.rpc.tls import server_credentials
from specgate.rpc.tracing import TracingInterceptor

__all__ = ["FLUSH_S", "STOP_SIGNALS", "Handlers", "Server", "ServerOptions"]

FLUSH_S = 0.5
"""How long a stop waits for the last bytes of ended calls and for watchers of health."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


class Handlers(grpc.GenericRpcHandler):
    """Takes the methods of the generated ``add_..._to_server(servicer, server.handlers)`` at any time.

    gRPC itself takes none once it runs, and a service listens while its model still loads.
    """

    def __init__(self) -> None:
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Take the methods of a service."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Ignore what newer generated code adds on top: the generic handlers hold the same methods."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        """Return the first method of that name."""
        found = (handlers.service(handler_call_details) for handlers in self._handlers)
        return next((handler for handler in found if handler is not None), None)


class Server:
    """One service on one port: ``start``, load, ``set_ready``, ``run``.

    ``service`` is the full name, "specgate.v1.DrafterService". Until ``set_ready`` and from ``drain`` on its
    calls are refused with ServiceUnavailable and health says NOT_SERVING. ``interceptors`` may raise what handlers may.
    """

    def __init__(
        self, service: str, options: ServerOptions, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    ) -> None:
        self.handlers = Handlers()
        self._service = service
        self._options = options
        self._port = 0
        self._admission = Admission(service)
        self._health = EngineHealth(service, lambda: self._admission.phase is Phase.SERVING, options.max_engine_age_s)
        self._grpc = self._build(interceptors)
        self._stop_asked = asyncio.Event()
        self._heartbeat: asyncio.Task[None] | None = None

    def _build(self, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
        server = grpc.aio.server(
            handlers=(self.handlers,),
            interceptors=(
                RequestIdInterceptor(self._service),
                ErrorInterceptor(),
                TracingInterceptor(self._service),
                *interceptors,
                self._admission,
            ),
            options=channel_arguments(self._options),
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (self._service, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        return server

    @property
    def endpoint(self) -> str:
        """HOST:PORT as bound; the port is 0 before ``start``."""
        return join_endpoint(self._options.host, self._port)

    @property
    def max_engine_age_s(self) -> float:
        """Seconds without a heartbeat after which the engine counts as dead."""
        return self._options.max_engine_age_s

    @property
    def draining(self) -> bool:
        """Whether a stop was asked for: no new sessions."""
        return self._admission.phase is Phase.DRAINING

    @property
    def active_calls(self) -> int:
        """Calls of the service that run at this moment; a session is one."""
        return self._admission.active

    async def start(self) -> None:
        """Listen, NOT_SERVING.

        Raises:
            InvalidArgument: the port cannot be bound, or a TLS file cannot be used.
        """
        self._port = self._bind()
        await self._health.refresh()
        await self._grpc.start()

    def _bind(self) -> int:
        host, port, tls = self._options.host, self._options.port, self._options.tls
        address = join_endpoint(host, port)
        try:
            if tls is None:
                return self._grpc.add_insecure_port(address)
            return self._grpc.add_secure_port(address, server_credentials(tls))
        except RuntimeError as error:
            problem = f"{port} on {host} cannot be bound: it is in use, or not ours to use"
            raise InvalidArgument("port", problem) from error

    async def set_ready(self, engine_age_s: Callable[[], float] | None = None) -> None:
        """Take calls, unless a stop was asked for meanwhile.

        Health is SERVING while ``engine_age_s``, the seconds since the engine's last heartbeat, is small.
        """
        if self.draining:
            return
        self._health.engine_age_s = engine_age_s
        self._admission.phase = Phase.SERVING
        await self._health.refresh()
        if engine_age_s is not None:
            self._heartbeat = asyncio.create_task(self._health.watch_heartbeat())

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain. A second signal kills the process.

        It takes over the process's signals, so it runs in the main thread.
        """
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        await self._stop_asked.wait()
        await self.drain()

    def _on_signal(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        _log.info("draining %d calls for at most %g s", self.active_calls, self._options.drain_s)
        self._stop_asked.set()

    async def drain(self) -> None:
        """Refuse new calls, let the running ones end within ``drain_s``, abort the rest, stop listening."""
        self._admission.phase = Phase.DRAINING
        await self._health.refresh()
        closing = None
        if self._options.reuse_port:
            # Servers that share the port take new connections from now on, and our clients are sent there.
            closing = asyncio.create_task(self._grpc.stop(self._options.drain_s))
        idle = await self._admission.wait_idle(self._options.drain_s)
        if not idle:
            _log.warning("%d calls did not end within %g s", self.active_calls, self._options.drain_s)
        await self._stop(FLUSH_S if idle else None)
        if closing is not None:
            await closing
        # gRPC returns before the handlers that it cancelled have cleaned up.
        await self._admission.wait_idle(FLUSH_S)

    async def _stop(self, grace_s: float | None) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.wait([self._heartbeat])
        await self._grpc.stop(grace_s)
