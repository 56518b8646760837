"""Load a model, check it on the path that will serve it, and start its engine. Needs torch."""

import os
from collections.abc import Callable

import torch

from specgate import cpu_library
from specgate.cpu_library import InstructionSet
from specgate.devices import pick_device
from specgate.runtime.attention.kernels import kernels_for
from specgate.runtime.cuda.decoder.drafting import launcher_on
from specgate.runtime.cuda.graphs import CudaCapturer
from specgate.runtime.engine.engine import Engine
from specgate.runtime.engine.forward_costs import measure_forwards
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.serving_path import build, why_slow
from specgate.runtime.loading import LoadedModel, load, pick_dtype
from specgate.runtime.scheduler import Limits
from specgate.service.config import ServiceConfig
from specgate.service.leases import LeaseBook
from specgate.service.model import ServedModel
from specgate.service.served import OnLoading, OnNotice
from specgate.types import Attention, Dtype

CPU_PAGE_SIZE = 2048
"""One page holds most sequences whole on the CPU, so that attention reads a view and copies nothing."""
CUDA_PAGE_SIZE = 256
"""The smallest that torch's fused attention takes."""
CPU_PREFILL_CHUNK = 64
CUDA_PREFILL_CHUNK = 512
LONE_CHUNKS = 4
"""Prompts with nobody decoding beside them run in longer chunks, but in chunks: somebody may come."""
ENGINE_LOST = 70
"""Exit code of a process whose engine or device is lost."""


def die() -> None:
    """Exit at once: without its device or its engine the process serves nothing, and a supervisor starts it anew."""
    os._exit(ENGINE_LOST)


def load_model(
    role: str,
    config: ServiceConfig,
    on_loading: OnLoading,
    on_notice: OnNotice,
    leases: LeaseBook | None,
    on_failure: Callable[[], None] | None,
) -> ServedModel:
    """Return a model in service. See ``load_served``."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    packs = packs_on(config, device)
    keeps_stored = packs and config.dtype == Dtype.AUTO
    loaded = load(
        config.model,
        device,
        dtype,
        on_loading,
        config.drafting.skip_file,
        tokenizer_of_file=config.tokenizer,
        keeps_stored=keeps_stored,
        drafts=role == "drafter",
        target_tokenizer=config.drafting.target_tokenizer,
    )
    if loaded.shared is not None:
        on_notice(f"the draft's tokenizer is another one: of a text's tokens it can say about {loaded.shared:.0%}")
    elif loaded.tokenizers is not None:
        on_notice("the draft's tokenizer is another one, with few of the target's tokens: its text is encoded anew")
    elif loaded.why_target_unread:
        on_notice(f"drafts are not translated, for the target's tokenizer cannot be read: {loaded.why_target_unread}")
    runner = build_runner(role, loaded, config, on_loading)
    if slow := why_slow(runner, config.attention, cuda_graphs=config.cuda_graphs):
        on_notice(slow)
    if device.type == "cpu" and config.attention is Attention.AUTO and not packs:
        on_notice(f"SLOW: products by torch on {device}: {cpu_library.why_not()}")
    forward_costs = measure_forwards(runner, drafts=role == "drafter")
    engine = Engine(runner, limits_of(config, device.type), chains=device.type == "cuda", on_failure=on_failure)
    engine.start()
    served = ServedModel(
        role,
        loaded,
        engine,
        config.max_sessions,
        leases=leases,
        run_ahead_rows=config.drafting.run_ahead_rows,
        forward_costs=forward_costs,
        draft_method=config.drafting.method,
        silence=config.silence,
    )
    # Else the first grammar would hold up all sessions.
    served.grammars.prepare()
    return served


def build_runner(role: str, loaded: LoadedModel, config: ServiceConfig, on_loading: OnLoading) -> ModelRunner:
    """Return a runner on the path that the settings and the device give; report the path if there is a choice."""
    on_cuda = loaded.device.type == "cuda"
    runner = build(
        loaded,
        kernels_for(config.attention, loaded),
        kv_tokens=config.kv_tokens,
        memory_share=config.memory_share,
        page_size=CUDA_PAGE_SIZE if on_cuda else _cpu_page_size(config, loaded.context_length),
        max_sessions=config.max_sessions,
        max_guesses=config.drafting.run_ahead_rows,
        capturer=CudaCapturer(loaded.device) if on_cuda and config.cuda_graphs else None,
        launcher=launcher_on(loaded.device) if on_cuda and role == "drafter" else None,
        cpu_graphs=config.cpu_graphs,
        packs=packs_on(config, loaded.device),
        progress=on_loading,
    )
    if on_cuda:
        kernel = runner.kernel
        drafts = f", drafts by {runner.drafts_by}" if role == "drafter" else ""
        on_loading(f"attention by {kernel.name} ({kernel.why}), {len(runner.buckets)} CUDA graphs{drafts}", 1, 1)
    return runner


def packs_on(config: ServiceConfig, device: torch.device) -> bool:
    """Return whether weights are packed: on a processor that has kernels for it, unless torch's are asked for."""
    wanted = config.attention is Attention.AUTO and device.type == "cpu"
    return wanted and cpu_library.instruction_set() is not InstructionSet.NONE


def _cpu_page_size(config: ServiceConfig, context_length: int) -> int:
    return min(CPU_PAGE_SIZE, context_length, config.kv_tokens or CPU_PAGE_SIZE)


def limits_of(config: ServiceConfig, device_type: str) -> Limits:
    """Return the limits of one forward."""
    limit = config.max_batch_tokens
    chunk = config.prefill_chunk or (CPU_PREFILL_CHUNK if device_type == "cpu" else CUDA_PREFILL_CHUNK)
    # Half of a forward is left to sessions that decode, however long the prompts beside them.
    return Limits(limit, min(chunk, limit // 2), min(LONE_CHUNKS * chunk, limit))
