"""One service in a running event loop: listen, load, serve, drain. Loop and signals belong to somebody else."""

import asyncio
import importlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgate import cpu_library, tracing
from specgate.cpu_library import InstructionSet
from specgate.errors import EngineFailed
from specgate.rpc.server import Server, ServerOptions
from specgate.rpc.tls import TlsFiles
from specgate.service.config import ServiceConfig
from specgate.service.leases import LeaseBook
from specgate.service.text import ServedText
from specgate.types import Attention, Dtype, ModelInfo

AddServicer = Callable[[Any, Any], None]
"""Puts a servicer for a ServedModel into a server's handlers."""
OnLoading = Callable[[str, int, int], None]
"""Called from another thread with a stage's name, how much of it is done and how much there is."""
OnNotice = Callable[[str], None]
"""Called from another thread with what whoever started the service must hear of."""

CPU_PAGE_SIZE = 2048
"""One page holds most sequences whole on the CPU, so that attention reads a view and copies nothing."""
CUDA_PAGE_SIZE = 256
"""The smallest that torch's fused attention takes."""
CPU_PREFILL_CHUNK = 64
CUDA_PREFILL_CHUNK = 512
LONE_CHUNKS = 4
"""Where prompts are all there is nobody waits, but somebody may come: they run in chunks too, longer ones."""
ENGINE_LOST = 70
"""Exit code of a process whose engine or device is lost."""
_log = logging.getLogger(__name__)


def servicer_of(role: str) -> AddServicer:
    """Return what serves ``role``, "drafter" or "verifier", from its own package, by name: we import no program."""
    add_servicer: AddServicer = importlib.import_module(f"{role}_svc.service").add_servicer
    return add_servicer


class Replica:
    """One service: ``start``, then ``run`` with the process's signals, or ``drain`` when told to.

    Args:
        role: "drafter" or "verifier".
        leases: where given, a session needs one of its tokens.
        adapt: called with the ``ModelRunner`` before its engine starts, such as to make it slower for a measurement.
    """

    def __init__(
        self,
        role: str,
        config: ServiceConfig,
        leases: LeaseBook | None = None,
        adapt: Callable[[Any], None] = lambda runner: None,
    ) -> None:
        self.leases = leases
        self._role = role
        self._config = config
        self._adapt = adapt
        self._server = Server(f"specgate.v1.{role.capitalize()}Service", _server_options(config))
        self._model: Any = None
        self._metrics: Any = None

    @property
    def endpoint(self) -> str:
        """HOST:PORT as bound; the port is 0 before ``start``."""
        return self._server.endpoint

    @property
    def metrics_endpoint(self) -> str | None:
        """HOST:PORT of ``/metrics``, None where there is none."""
        endpoint: str | None = self._metrics.endpoint if self._metrics is not None else None
        return endpoint

    async def start(self, on_loading: OnLoading, on_notice: OnNotice = _log.warning) -> None:
        """Listen while the model loads, so that health can tell; return once sessions are taken.

        ``on_notice`` hears when the model is served in a way that is much slower than it could be.

        Raises:
            InvalidArgument: it cannot listen there, or the model cannot be served with this configuration.
            ModelLoadError, UnsupportedArchitecture: the model cannot be served at all.
        """
        if self._config.traces_endpoint is not None:
            # Who asks decides what is traced.
            tracing.configure(f"specgate-{self._role}", self._config.traces_endpoint, sample=0.0)
        await self._server.start()
        try:
            model = self._model = await asyncio.to_thread(self._load, on_loading, on_notice)
            if self._config.metrics_port is not None:
                from specgate.service.metrics import MetricsServer

                self._metrics = MetricsServer(model, self._config.metrics_host, self._config.metrics_port)
        except BaseException:
            await self.drain()
            raise
        servicer_of(self._role)(model, self._server.handlers)
        await self._server.set_ready(lambda: model.engine.heartbeat_age_s)

    def _load(self, on_loading: OnLoading, on_notice: OnNotice) -> Any:
        """Load what is served, and what would hold up everybody at the first grammar."""
        served = load_served(self._role, self._config, on_loading, on_notice, leases=self.leases, adapt=self._adapt)
        if self._config.has_model:
            served.grammars.prepare()
        return served

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
        if self._model is not None:
            self._model.engine.stop()

    def info(self) -> ModelInfo:
        """Return what the service says of itself, after ``start``."""
        info: ModelInfo = self._model.info()
        return info

    def check_health(self) -> None:
        """Raise EngineFailed where the engine's last heartbeat is too long ago."""
        age_s, limit_s = self._model.engine.heartbeat_age_s, self._server.max_engine_age_s
        if age_s > limit_s:
            raise EngineFailed(f"the {self._role}'s engine has had no heartbeat for {age_s:.0f} s")


def _die() -> None:
    """Leave at once: with the device or its thread lost nothing can be served, and a supervisor starts anew."""
    os._exit(ENGINE_LOST)


def load_served(
    role: str,
    config: ServiceConfig,
    on_loading: OnLoading,
    on_notice: OnNotice,
    *,
    leases: LeaseBook | None = None,
    adapt: Callable[[Any], None] = lambda runner: None,
    on_failure: Callable[[], None] | None = _die,
) -> Any:
    """Load the model, check it on the serving path, start its engine. Returns a ServedModel, or a ServedText where
    drafts come from no model.

    Args:
        adapt: see ``Replica``.
        on_failure: called on the engine's thread when it dies.

    Raises:
        InvalidArgument: the model cannot be served with this configuration.
        ModelLoadError, UnsupportedArchitecture: the model cannot be served at all.
    """
    if not config.has_model:
        return ServedText(config.max_sessions, config.kv_tokens, leases, config.silence)
    import torch

    from specgate.devices import pick_device
    from specgate.runtime.engine.engine import Engine
    from specgate.runtime.engine.forward_costs import measure_forwards
    from specgate.runtime.engine.serving_path import why_slow
    from specgate.runtime.loading import load, pick_dtype
    from specgate.service.model import ServedModel

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    packs = _packs_on(config, device)
    keeps_stored = packs and config.dtype == Dtype.AUTO
    loaded = load(config.model, device, dtype, on_loading, config.skip_file, keeps_stored=keeps_stored)
    runner = _build(role, loaded, config, on_loading)
    adapt(runner)
    if slow := why_slow(runner, config.attention, cuda_graphs=config.cuda_graphs):
        on_notice(slow)
    if device.type == "cpu" and config.attention is Attention.AUTO and not packs:
        on_notice(f"SLOW: products by torch on {device}: {cpu_library.why_not()}")
    forward_costs = measure_forwards(runner, drafts=role == "drafter")
    engine = Engine(runner, _limits(config, device.type), chains=device.type == "cuda", on_failure=on_failure)
    engine.start()
    return ServedModel(
        role,
        loaded,
        engine,
        config.max_sessions,
        leases=leases,
        run_ahead_rows=config.run_ahead_rows,
        forward_costs=forward_costs,
        draft_method=config.draft_method,
        silence=config.silence,
    )


def _server_options(config: ServiceConfig) -> ServerOptions:
    tls = None
    if config.tls_certificate is not None and config.tls_key is not None:
        client_ca = Path(config.tls_client_ca) if config.tls_client_ca else None
        tls = TlsFiles(Path(config.tls_certificate), Path(config.tls_key), client_ca)
    return ServerOptions(host=config.host, port=config.port, tls=tls, insecure=config.insecure, drain_s=config.drain_s)


def _build(role: str, loaded: Any, config: ServiceConfig, on_loading: OnLoading) -> Any:
    """Return a ModelRunner on the path that the flags and the device give; tell which, where there is a choice."""
    from specgate.runtime.attention.kernels import kernels_for
    from specgate.runtime.cuda.decoder.one_launch import drivers_of_triton
    from specgate.runtime.cuda.graphs import CudaCapturer
    from specgate.runtime.engine.serving_path import build

    on_cuda = loaded.device.type == "cuda"
    runner = build(
        loaded,
        kernels_for(config.attention, loaded),
        kv_tokens=config.kv_tokens,
        memory_share=config.memory_share,
        page_size=CUDA_PAGE_SIZE if on_cuda else _cpu_page_size(config, loaded.context_length),
        max_sessions=config.max_sessions,
        max_guesses=config.run_ahead_rows,
        capturer=CudaCapturer(loaded.device) if on_cuda and config.cuda_graphs else None,
        drivers=drivers_of_triton() if on_cuda and role == "drafter" else (),
        cpu_graphs=config.cpu_graphs,
        packs=_packs_on(config, loaded.device),
        progress=on_loading,
    )
    if on_cuda:
        kernel = runner.kernel
        drafts = f", drafts by {runner.drafts_by}" if role == "drafter" else ""
        on_loading(f"attention by {kernel.name} ({kernel.why}), {len(runner.buckets)} CUDA graphs{drafts}", 1, 1)
    return runner


def _packs_on(config: ServiceConfig, device: Any) -> bool:
    """Return whether weights may be packed: on a processor that there are kernels for, unless torch's are wanted."""
    wanted = config.attention is Attention.AUTO and device.type == "cpu"
    return wanted and cpu_library.instruction_set() is not InstructionSet.NONE


def _cpu_page_size(config: ServiceConfig, context_length: int) -> int:
    return min(CPU_PAGE_SIZE, context_length, config.kv_tokens or CPU_PAGE_SIZE)


def _limits(config: ServiceConfig, device_type: str) -> Any:
    from specgate.runtime.scheduler import Limits

    limit = config.max_batch_tokens
    chunk = config.prefill_chunk or (CPU_PREFILL_CHUNK if device_type == "cpu" else CUDA_PREFILL_CHUNK)
    # Half of a forward is left to those who decode, however long the prompts beside them.
    return Limits(limit, min(chunk, limit // 2), min(LONE_CHUNKS * chunk, limit))
