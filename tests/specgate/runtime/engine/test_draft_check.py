"""Which way to draft in one launch serves: right, as the others, and the fastest; else none, and that is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.runtime.attention.paged_sdpa import PagedSdpaKernel
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.decoder.buffers import DraftBatch, Workspace
from specgate.runtime.cuda.decoder.one_launch import Driver
from specgate.runtime.cuda.decoder.shape import DecoderShape, DraftTiles
from specgate.runtime.cuda.decoder.weights import StackedWeights
from specgate.runtime.cuda.graphs import EagerCapturer
from specgate.runtime.engine.draft_check import add_drafter, stack_decoder
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.engine.serving_path import build
from tests.support.drafting import stacked
from tests.support.models import load_float32, quiet, write_llama, write_model
from tests.support.torch_decoder import TorchDecoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"), head_dim=16)


def off_by(factor: float) -> Callable[..., None]:
    """Return what launches drafts whose logits are wrong by so much."""
    right = TorchDecoder()

    def launch(w: StackedWeights, b: DraftBatch, u: Workspace, s: DecoderShape, t: DraftTiles) -> None:
        right(w, b, u, s, t)
        u.logits.mul_(factor)

    return launch


def refused(*_: Any) -> None:
    raise RuntimeError("too many blocks in a cooperative launch")


def lost(*_: Any) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure")


def unmet() -> TorchDecoder:
    decoder = TorchDecoder()
    decoder.fault = 1.0
    return decoder


def serve(folder: Path, times: dict[str, float], **launches: Callable[..., None]) -> ModelRunner:
    """Return a runner whose ways to draft take so long; without any it takes 5."""

    def us_of(runner: ModelRunner) -> float:
        return 5.0 if runner.drafter is None else times[runner.drafter.name]

    runner, decoder = stacked(folder)
    drivers = [Driver(name, launch, is_whole=True) for name, launch in launches.items()]
    add_drafter(runner, decoder, drivers, EagerCapturer(), quiet, us_of)
    assert runner.pool.num_free == runner.pool.num_pages
    return runner


@pytest.mark.parametrize(
    ("times", "drafts_by"),
    [
        ({"one": 3.0, "other": 2.0}, "other 2, one 3, forwards in a row 5 us a token"),
        ({"one": 6.0}, "forwards in a row 5, one 6 us a token"),
    ],
)
def test_the_fastest_serves_and_all_are_told(folder: Path, times: dict[str, float], drafts_by: str) -> None:
    runner = serve(folder, times, **{name: TorchDecoder() for name in times})
    assert runner.drafts_by == drafts_by
    assert drafts_by.startswith(runner.drafter.name if runner.drafter else "forwards in a row")


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        (off_by(1.1), "differ from the model's own by 1.0e-01"),
        (off_by(1 + 1e-6), "its logits differ from those of other launches"),
        (refused, "too many blocks in a cooperative launch"),
        (unmet(), "its programs did not meet"),
    ],
)
def test_what_is_wrong_or_refused_gives_way_to_another_one(
    folder: Path, launch: Callable[..., None], reason: str, caplog: Any
) -> None:
    runner = serve(folder, {"plain": 3.0, "bad": 2.0}, plain=TorchDecoder(), bad=launch)
    assert runner.drafter
    assert runner.drafter.name == "plain"
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith("drafts by bad are not used: ")
    assert reason in told


def test_pages_that_lie_apart_are_left_to_forwards(folder: Path, caplog: Any) -> None:
    loaded = load_float32(folder)
    decoder = stack_decoder(loaded, 64)
    assert decoder
    # As they are before the first ``resize``.
    runner = prepare(loaded, 1024, 64, quiet, [VarlenKernel(varlen_attention, loaded.context_length)], packs=False)
    add_drafter(runner, decoder, [Driver("one", TorchDecoder(), True)], EagerCapturer(), quiet, lambda _: 1.0)
    assert runner.drafter is None
    assert "drafts by one are not used: RuntimeError: the pages of all layers are not one tensor" in caplog.text


def test_a_device_that_is_lost_at_load_is_lost(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="CUDA error"):
        serve(folder, {}, one=lost)


@pytest.mark.parametrize("page_size", [32, 512])
def test_few_pages_are_enough(folder: Path, page_size: int) -> None:
    runner, decoder = stacked(folder, page_size)
    runner.resize(page_size)
    add_drafter(runner, decoder, [Driver("one", TorchDecoder(), True)], EagerCapturer(), quiet, lambda _: 1.0)
    assert "one" in runner.drafts_by


def test_the_whole_way_from_a_loaded_model(folder: Path) -> None:
    loaded = load_float32(folder)
    kernels = [VarlenKernel(varlen_attention, loaded.context_length)]
    options = {"kv_tokens": 4096, "page_size": 256, "max_sessions": 1, "packs": False, "progress": quiet}
    drivers = [Driver("torch", TorchDecoder(), is_whole=True)]
    runner = build(loaded, kernels, capturer=EagerCapturer(), drivers=drivers, **options)
    assert "torch" in runner.drafts_by
    runner.resize(2048)
    assert runner.drafter is None
    no_graphs = build(load_float32(folder), kernels, capturer=None, drivers=drivers, **options)
    spans = build(load_float32(folder), [PagedSdpaKernel()], capturer=EagerCapturer(), drivers=drivers, **options)
    assert no_graphs.drafts_by == spans.drafts_by == "forwards in a row"


def test_a_decoder_of_another_form_is_told(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("INFO")
    loaded = load_float32(write_model(tmp_path, "gpt2"))
    with torch.inference_mode():
        assert stack_decoder(loaded, 64) is None
    assert "drafts of GPT2LMHeadModel are not made in one launch" in caplog.text
