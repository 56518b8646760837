"""Drafts in one launch on a card: each way to launch passes the check of a load, and texts are those of its drafts."""

from pathlib import Path

import pytest
import torch

from specgate.runtime.attention.kernels import kernels_for
from specgate.runtime.cuda.decoder.one_launch import drivers_of_triton
from specgate.runtime.cuda.graphs import CudaCapturer
from specgate.runtime.engine.draft_check import add_drafter, stack_decoder
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import prepare
from specgate.runtime.loading import load
from specgate.types import SamplingParams
from tests.support.drafting import drafting
from tests.support.models import quiet, write_llama
from tests.support.sessions import VOCAB_SIZE

LAWS = {"greedy": SamplingParams(temperature=0), "noise": SamplingParams(temperature=0.8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    return write_llama(tmp_path_factory.mktemp("gpu"), VOCAB_SIZE, intermediate_size=1536, **sizes)


def runner_with(folder: Path, *numbers: int) -> ModelRunner:
    """Return a runner that drafts by the last of these ways to launch, compared with those before it."""
    loaded = load(str(folder), torch.device("cuda"), torch.bfloat16, quiet)
    decoder, drivers = stack_decoder(loaded, 256), drivers_of_triton()
    assert decoder
    runner = prepare(loaded, 4096, 256, quiet, kernels_for("varlen", loaded))
    runner.resize(65_536)
    chosen = [drivers[number] for number in numbers]

    def us_of(runner: ModelRunner) -> float:
        return 1.0 if runner.drafter and runner.drafter.name == chosen[-1].name else 2.0

    add_drafter(runner, decoder, chosen, CudaCapturer(loaded.device), quiet, us_of)
    return runner


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
async def test_all_ways_to_launch_draft_the_same(folder: Path, law: str) -> None:
    found = []
    for numbers in ((0,), (0, 1), (0, 2)):
        runner = runner_with(folder, *numbers)
        async with drafting(runner) as one:
            found.append(await one.text(sampling=LAWS[law]))
        assert runner.drafter
        assert runner.drafts_by.count("launch") == len(numbers)
    assert found[0] == found[1] == found[2]
