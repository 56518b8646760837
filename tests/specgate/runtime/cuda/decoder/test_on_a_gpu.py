"""Drafts in one call on a card: both ways to launch pass the check of a load and draft the same."""

from functools import partial
from pathlib import Path

import pytest
import torch

from specgate.runtime.attention.kernels import kernels_for
from specgate.runtime.cuda.decoder.drafting import StepLauncher
from specgate.runtime.cuda.graphs import CudaCapturer
from specgate.runtime.engine.draft_check import add_drafter, stack_decoder
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import load
from specgate.types import SamplingParams
from tests.support.drafting import drafting, slow_without
from tests.support.models import quiet, write_llama
from tests.support.sessions import VOCAB_SIZE

LAWS = {"greedy": SamplingParams(temperature=0), "noise": SamplingParams(temperature=0.8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    return write_llama(tmp_path_factory.mktemp("gpu"), VOCAB_SIZE, intermediate_size=1536, **sizes)


def runner_with(folder: Path, *, early: bool) -> ModelRunner:
    from specgate.runtime.cuda.decoder import launches

    loaded = load(str(folder), torch.device("cuda"), torch.bfloat16, quiet)
    decoder = stack_decoder(loaded, 256)
    assert decoder
    runner = prepare(loaded, 4096, 256, quiet, kernels_for("varlen", loaded))
    runner.resize(65_536)
    launcher = StepLauncher("launches", partial(launches.launch, early=early))
    add_drafter(runner, decoder, launcher, CudaCapturer(loaded.device), quiet, slow_without)
    assert runner.drafter
    return runner


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
async def test_both_ways_to_launch_draft_the_same(folder: Path, law: str) -> None:
    found = []
    for early in (False, True):
        async with drafting(runner_with(folder, early=early)) as one:
            found.append(await one.text(sampling=LAWS[law]))
    assert found[0] == found[1]
