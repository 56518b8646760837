"""From a loaded model to the runner that serves it, and what is told of a path that is slower than it could be."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgate.runtime.attention.kernels import kernels_for
from specgate.runtime.attention.paged_sdpa import PagedSdpaKernel
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.serving_path import build, why_slow
from specgate.runtime.loading import LoadedModel, load
from tests.support.models import load_float32, quiet, write_llama
from tests.support.tape import EagerCapturer


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_float32(write_llama(tmp_path_factory.mktemp("llama")))


def sdpa_on(loaded: LoadedModel, device: str) -> ModelRunner:
    return ModelRunner(
        replace(loaded, device=torch.device(device)), 1024, 256, PagedSdpaKernel(why="it has no block_table")
    )


def test_a_fallback_on_a_gpu_is_told_with_its_reason(loaded: LoadedModel) -> None:
    told = why_slow(sdpa_on(loaded, "cuda:1"), "auto", cuda_graphs=True)
    assert told == "SLOW: attention by sdpa on cuda:1, not fused and without CUDA graphs: it has no block_table"


@pytest.mark.parametrize(("device", "attention"), [("cpu", "auto"), ("cuda", "sdpa")])
def test_what_was_asked_for_and_what_is_as_fast_as_it_can_be_is_not_told(
    device: str, attention: str, loaded: LoadedModel
) -> None:
    assert why_slow(sdpa_on(loaded, device), attention, cuda_graphs=True) == ""


def test_graphs_that_could_not_be_recorded_are_told(loaded: LoadedModel) -> None:
    on_cuda = replace(loaded, device=torch.device("cuda"))
    runner = ModelRunner(on_cuda, 1024, 256, VarlenKernel(varlen_attention, 512))
    runner.why_no_graphs = "RuntimeError: it reads a number"
    told = why_slow(runner, "auto", cuda_graphs=True)
    assert told == "SLOW: no CUDA graph could be recorded on cuda: RuntimeError: it reads a number"
    assert why_slow(runner, "auto", cuda_graphs=False) == ""


def test_float16_serves(tmp_path: Path) -> None:
    loaded = load(str(write_llama(tmp_path)), torch.device("cpu"), torch.float16, quiet)
    kernels = kernels_for("auto", loaded)
    runner = build(
        loaded, kernels, kv_tokens=1024, page_size=512, max_sessions=2, capturer=EagerCapturer(), progress=quiet
    )
    assert runner.kernel.why == "the CPU's own"
