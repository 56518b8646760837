"""From a loaded model to the runner that serves it: attention checked, products warm, pages sized, graphs made."""

import importlib
import logging
from collections.abc import Sequence

from specgate.runtime.attention.interface import Kernel
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cpu.decoder import DecoderKernel
from specgate.runtime.cuda.decoder.drafting import StepLauncher
from specgate.runtime.cuda.graphs import Capturer
from specgate.runtime.engine.draft_check import add_drafter, stack_decoder
from specgate.runtime.engine.few_rows import keep_if_fast
from specgate.runtime.engine.forward_costs import measure_forwards
from specgate.runtime.engine.graph_check import add_cpu_graphs, add_graphs
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import kv_tokens_to_check, prepare
from specgate.runtime.engine.sizing import fitting_kv_tokens
from specgate.runtime.loading import LoadedModel, Progress

_log = logging.getLogger(__name__)


def build(
    loaded: LoadedModel,
    kernels: Sequence[Kernel],
    *,
    kv_tokens: int | None,
    memory_share: float = 1.0,
    page_size: int,
    max_sessions: int,
    max_guesses: int = 0,
    capturer: Capturer | None,
    launcher: StepLauncher | None = None,
    cpu_graphs: bool = True,
    packs: bool = True,
    progress: Progress,
) -> ModelRunner:
    """Bring a model onto its serving path.

    Args:
        kernels: ways to compute attention, the most wanted first.
        kv_tokens: what the pages hold; None: as memory allows.
        memory_share: of a card's memory, what is for this process.
        max_guesses: sequences that a drafter runs ahead side by side, beside its sessions.
        capturer: records graphs where the attention that serves lets itself be recorded; None: there are none.
        launcher: of a drafter, what may draft several tokens in one call, where graphs are recorded.
        cpu_graphs: record forwards of few rows, on the CPU.
        packs: see ``self_check.prepare``.

    Raises:
        UnsupportedArchitecture, ModelLoadError: see ``self_check.prepare``.
        ResourceExhausted: the pages do not fit into memory.
    """
    # Until the check has shown how much memory a page takes.
    to_check = kv_tokens_to_check(loaded, page_size)
    decoder = stack_decoder(loaded, page_size) if launcher and capturer is not None else None
    runner = prepare(loaded, min(to_check, kv_tokens or to_check), page_size, progress, kernels, packs=packs)
    runner.resize(kv_tokens or fitting_kv_tokens(runner, max_sessions, memory_share))
    _speed_up_choosing(runner)
    keep_if_fast(runner, capturer, measure_forwards)
    if capturer is not None and isinstance(runner.kernel, VarlenKernel):
        add_graphs(runner, capturer, max(max_sessions, max_guesses), progress)
        if decoder and launcher:
            add_drafter(runner, decoder, launcher, capturer, progress)
    # Where all layers are one call there is no interpreter between them.
    if cpu_graphs and loaded.device.type == "cpu" and not isinstance(runner.kernel, DecoderKernel):
        add_cpu_graphs(runner, progress)
    return runner


def _speed_up_choosing(runner: ModelRunner) -> None:
    if runner.device.type != "cuda":
        return
    try:
        choosing = importlib.import_module("specgate.runtime.cuda.choosing")
    except ImportError as error:
        _log.info("torch chooses: %s", error)
    else:
        runner.chooser = choosing.chooser_on(runner.device, runner.loaded.dtype, runner.vocab_size)


def why_slow(runner: ModelRunner, attention: str, *, cuda_graphs: bool) -> str:
    """Return what keeps a model on CUDA off its fast path, for a person; empty where nothing does, or it was asked for.

    Args:
        attention: what was asked for, "auto", "varlen" or "sdpa".
        cuda_graphs: whether graphs were asked for.
    """
    device, kernel, is_fused = runner.loaded.device, runner.kernel, isinstance(runner.kernel, VarlenKernel)
    if device.type != "cuda":
        return ""
    if attention == "auto" and not is_fused:
        return f"SLOW: attention by {kernel.name} on {device}, not fused and without CUDA graphs: {kernel.why}"
    if cuda_graphs and is_fused and not runner.buckets:
        return f"SLOW: no CUDA graph could be recorded on {device}: {runner.why_no_graphs}"
    return ""
