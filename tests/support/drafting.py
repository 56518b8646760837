"""A drafter's runner on the CPU that drafts in one launch, by whatever stands for a card."""

from pathlib import Path

from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.attention.varlen_reference import varlen_attention
from specgate.runtime.cuda.decoder.one_launch import Way
from specgate.runtime.cuda.graphs import EagerCapturer
from specgate.runtime.engine.draft_check import add_drafter, stack_decoder
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from tests.support.models import load_float32, quiet
from tests.support.torch_decoder import TorchDecoder

KV_TOKENS = 4096


def slow_without(runner: ModelRunner) -> float:
    """Say that a draft in one launch is faster than forwards in a row, which it is not here."""
    return 2.0 if runner.drafter is None else 1.0


def runner_with(folder: Path, *ways: Way, page_size: int = 64) -> ModelRunner:
    """Return a runner on which the first of these ways that is right drafts; with none, forwards in a row do."""
    loaded = load_float32(folder)
    decoder = stack_decoder(loaded, page_size)
    kernel = VarlenKernel(varlen_attention, loaded.context_length)
    runner = prepare(loaded, KV_TOKENS, page_size, quiet, [kernel], packs=False)
    runner.resize(KV_TOKENS)
    if decoder is not None:
        add_drafter(runner, decoder, ways, EagerCapturer(), quiet, slow_without)
    return runner


def by_torch(folder: Path) -> tuple[ModelRunner, TorchDecoder]:
    """Return a runner that drafts by torch, and what launches, which has launched nothing that is told."""
    decoder = TorchDecoder()
    runner = runner_with(folder, Way("torch", decoder, is_whole=True))
    assert runner.drafter, runner.drafts_by
    decoder.sizes.clear()
    return runner, decoder
