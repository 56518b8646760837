"""Drafts in one call serve where they are right and faster; else forwards in a row do, and that is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.runtime.attention.paged_sdpa import PagedSdpaKernel
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.decoder.buffers import DraftBatch, Workspace
from specgate.runtime.cuda.decoder.drafting import StepLauncher
from specgate.runtime.cuda.decoder.shape import DecoderShape, DraftTiles
from specgate.runtime.cuda.decoder.weights import StackedWeights
from specgate.runtime.engine.draft_check import add_drafter, stack_decoder
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.engine.serving_path import build
from tests.support.drafting import stacked
from tests.support.models import load_float32, quiet, write_llama, write_model
from tests.support.tape import EagerCapturer
from tests.support.torch_decoder import TorchDecoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"), head_dim=16)


def off_by(factor: float) -> Callable[..., None]:
    """Return what drafts with logits that are wrong by so much."""
    right = TorchDecoder()

    def launch(w: StackedWeights, b: DraftBatch, u: Workspace, s: DecoderShape, t: DraftTiles) -> None:
        right(w, b, u, s, t)
        u.logits[int(b.scalars[0]) - 1] *= factor

    return launch


def refused(*_: Any) -> None:
    raise RuntimeError("too many resources requested for launch")


def lost(*_: Any) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure")


def serve(folder: Path, launch: Callable[..., None], us: float = 2.0) -> ModelRunner:
    """Return a runner whose drafts in one call take so long; by forwards in a row a token takes 5."""

    def us_of(runner: ModelRunner) -> float:
        return us if runner.drafter else 5.0

    runner, decoder = stacked(folder)
    add_drafter(runner, decoder, StepLauncher("launches", launch), EagerCapturer(), quiet, us_of)
    assert runner.pool.num_free == runner.pool.num_pages
    return runner


@pytest.mark.parametrize(
    ("us", "drafts_by"),
    [(2.0, "launches 2, forwards in a row 5 us a token"), (6.0, "forwards in a row 5, launches 6 us a token")],
)
def test_the_faster_serves_and_both_are_told(folder: Path, us: float, drafts_by: str) -> None:
    runner = serve(folder, TorchDecoder(), us)
    assert runner.drafts_by == drafts_by
    assert (runner.drafter is not None) == (us < 5)


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        (off_by(1.1), "differ from the model's own by 1.0e-01"),
        (refused, "too many resources requested for launch"),
    ],
)
def test_what_is_wrong_or_refused_gives_way_to_forwards_in_a_row(
    folder: Path, launch: Callable[..., None], reason: str, caplog: Any
) -> None:
    runner = serve(folder, launch)
    assert runner.drafter is None
    assert runner.drafts_by == "forwards in a row"
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith("drafts by launches are not used: ")
    assert reason in told


def test_pages_that_lie_apart_are_left_to_forwards(folder: Path, caplog: Any) -> None:
    loaded = load_float32(folder)
    decoder = stack_decoder(loaded, 64)
    assert decoder
    # As they are before the first ``resize``.
    runner = prepare(loaded, 1024, 64, quiet, [VarlenKernel(varlen_attention, loaded.context_length)], packs=False)
    add_drafter(runner, decoder, StepLauncher("one", TorchDecoder()), EagerCapturer(), quiet, lambda _: 1.0)
    assert runner.drafter is None
    assert "drafts by one are not used: RuntimeError: the pages of all layers are not one tensor" in caplog.text


def test_a_device_that_is_lost_at_load_is_lost(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="CUDA error"):
        serve(folder, lost)


@pytest.mark.parametrize("page_size", [32, 512])
def test_few_pages_are_enough(folder: Path, page_size: int) -> None:
    runner, decoder = stacked(folder, page_size)
    runner.resize(page_size)
    add_drafter(runner, decoder, StepLauncher("one", TorchDecoder()), EagerCapturer(), quiet, lambda _: 1.0)
    assert "one" in runner.drafts_by


def test_the_whole_way_from_a_loaded_model(folder: Path) -> None:
    loaded = load_float32(folder)
    kernels = [VarlenKernel(varlen_attention, loaded.context_length)]
    options = {"kv_tokens": 4096, "page_size": 256, "max_sessions": 1, "packs": False, "progress": quiet}
    launcher = StepLauncher("torch", TorchDecoder())
    runner = build(loaded, kernels, capturer=EagerCapturer(), launcher=launcher, **options)
    assert "torch" in runner.drafts_by
    runner.resize(2048)
    assert runner.drafter is None
    no_graphs = build(load_float32(folder), kernels, capturer=None, launcher=launcher, **options)
    spans = build(load_float32(folder), [PagedSdpaKernel()], capturer=EagerCapturer(), launcher=launcher, **options)
    assert no_graphs.drafts_by == spans.drafts_by == "forwards in a row"


def test_a_decoder_of_another_form_is_told(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("INFO")
    loaded = load_float32(write_model(tmp_path, "gpt2"))
    with torch.inference_mode():
        assert stack_decoder(loaded, 64) is None
    assert "drafts of GPT2LMHeadModel are not made in one call" in caplog.text
