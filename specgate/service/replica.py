"""One service in a running event loop: listen, load, serve, drain. Its caller owns the loop and the signals."""

import asyncio
import importlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specgate import tracing
from specgate.errors import EngineFailed
from specgate.rpc.server import Server, ServerOptions
from specgate.rpc.tls import TlsFiles
from specgate.service.config import ServiceConfig
from specgate.service.leases import LeaseBook
from specgate.service.served import OnLoading, OnNotice, Served
from specgate.service.text import ServedText
from specgate.types import ModelInfo

if TYPE_CHECKING:
    from specgate.service.metrics import MetricsServer

_log = logging.getLogger(__name__)


class ServiceModule(Protocol):
    """``drafter_svc.service`` or ``verifier_svc.service``."""

    def add_servicer(self, served: Served, handlers: Any) -> None:
        """Add a servicer to a server's handlers."""
        ...


class Replica:
    """One service: ``start``, then ``run`` with the process's signals, or ``drain`` when told to.

    Args:
        role: "drafter" or "verifier".
        leases: if given, a session needs one of its tokens.
    """

    def __init__(self, role: str, config: ServiceConfig, leases: LeaseBook | None = None) -> None:
        self.leases = leases
        self._role = role
        self._config = config
        self._server = Server(f"specgate.v1.{role.capitalize()}Service", _server_options(config))
        self._loaded: Served | None = None
        self._metrics: MetricsServer | None = None

    @property
    def endpoint(self) -> str:
        """HOST:PORT as bound; the port is 0 before ``start``."""
        return self._server.endpoint

    @property
    def metrics_endpoint(self) -> str | None:
        """HOST:PORT of ``/metrics``, or None."""
        return None if self._metrics is None else self._metrics.endpoint

    @property
    def _served(self) -> Served:
        assert self._loaded is not None, "before start"
        return self._loaded

    async def start(self, on_loading: OnLoading, on_notice: OnNotice = _log.warning) -> None:
        """Listen while the model loads, so that health answers; return once sessions are taken.

        ``on_notice`` is called if the model is served in a way that is much slower than it could be.

        Raises:
            InvalidArgument: it cannot listen there, or the model cannot be served with this configuration.
            ModelLoadError, UnsupportedArchitecture: the model cannot be served at all.
        """
        if self._config.traces_endpoint is not None:
            # A service adds to the traces of its clients and begins none.
            tracing.configure(f"specgate-{self._role}", self._config.traces_endpoint, sample=0.0)
        await self._server.start()
        try:
            load = self._role, self._config, on_loading, on_notice, self.leases
            served = self._loaded = await asyncio.to_thread(load_served, *load)
            if self._config.metrics_port is not None:
                from specgate.service.metrics import MetricsServer

                self._metrics = MetricsServer(served, self._config.metrics_host, self._config.metrics_port)
        except BaseException:
            await self.drain()
            raise
        # By name: the shared package imports neither program.
        module: ServiceModule = importlib.import_module(f"{self._role}_svc.service")
        module.add_servicer(served, self._server.handlers)
        await self._server.set_ready(lambda: served.engine.heartbeat_age_s)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain. For the main thread of a process of its own."""
        try:
            await self._server.run()
        finally:
            self._stop()

    async def drain(self) -> None:
        """Refuse new sessions, let the running ones end within the drain time, stop."""
        await self._server.drain()
        self._stop()

    def _stop(self) -> None:
        tracing.shut_down()
        if self._metrics is not None:
            self._metrics.stop()
        if self._loaded is not None:
            self._loaded.engine.stop()

    def info(self) -> ModelInfo:
        """Return what the service says of itself, after ``start``."""
        return self._served.info()

    def check_health(self) -> None:
        """Raise EngineFailed if the engine's last heartbeat is too long ago."""
        age_s, limit_s = self._served.engine.heartbeat_age_s, self._server.max_engine_age_s
        if age_s > limit_s:
            raise EngineFailed(f"the {self._role}'s engine has had no heartbeat for {age_s:.0f} s")


def load_served(
    role: str,
    config: ServiceConfig,
    on_loading: OnLoading,
    on_notice: OnNotice,
    leases: LeaseBook | None = None,
    *,
    exits_on_failure: bool = True,
) -> Served:
    """Load what a service serves: a model, checked on the serving path, or a text source. Torch is imported only for a
    model.

    Args:
        exits_on_failure: end the process when the engine dies.

    Raises:
        InvalidArgument: the model cannot be served with this configuration.
        ModelLoadError, UnsupportedArchitecture: the model cannot be served at all.
    """
    if not config.has_model:
        return ServedText(config.max_sessions, config.kv_tokens, leases, config.silence)
    from specgate.service.loading import die, load_model

    return load_model(role, config, on_loading, on_notice, leases, die if exits_on_failure else None)


def _server_options(config: ServiceConfig) -> ServerOptions:
    tls = None
    if config.tls_certificate is not None and config.tls_key is not None:
        client_ca = Path(config.tls_client_ca) if config.tls_client_ca else None
        tls = TlsFiles(Path(config.tls_certificate), Path(config.tls_key), client_ca)
    return ServerOptions(host=config.host, port=config.port, tls=tls, insecure=config.insecure, drain_s=config.drain_s)
