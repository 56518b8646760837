"""HuggingFace as a baseline: its own text, its own schedules, and a word where it cannot."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from orchestrator.decode.request import GenerationRequest
from specgate.errors import ServiceUnavailable
from specgate.types import SamplingParams
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.peers.hf_assisted import LOOKUP, SCHEDULES
from tests.support.models import Mix, write_llama

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft that often agrees with it, and one of another vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "target", 64, seed=1, eos_token_id=5)
    write_llama(folder / "draft", 64, seed=2, mix=Mix(1, 0.9), eos_token_id=5)
    write_llama(folder / "stranger", 48, seed=3)
    return folder


def bare_loop(folder: Path, assistant: str) -> BareLoopProcess:
    models = {"model": str(folder / "target"), "assistant": str(folder / assistant)}
    return BareLoopProcess(**models, dtype="float32", device="cpu", threads=1)


async def test_greedy_text_is_the_targets_under_every_schedule_and_sampling_follows_the_request(folder: Path) -> None:
    request = GenerationRequest((1, 2, 3), sampling=GREEDY, max_tokens=60)
    warm = replace(request, sampling=SamplingParams(1.0, top_k=50, top_p=0.9), seed=1)
    narrow = replace(warm, sampling=SamplingParams(1.0, top_k=1))
    async with bare_loop(folder, "draft") as loop:
        assert (loop.has_assistant, loop.no_assistant) == (True, "")
        alone = await loop.run(request)
        runs = {schedule: await loop.run(request, schedule) for schedule in SCHEDULES}
        again = await loop.run(request, "default")
        looked_up = await loop.run(request, LOOKUP)
        sampled = [[await loop.run(warm, schedule) for _ in range(2)] for schedule in (None, "gamma5")]
        likeliest = [await loop.run(narrow, schedule) for schedule in (None, "gamma5")]
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    # Past the end-of-sequence token, as the baseline decodes.
    expected = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=60, do_sample=False, eos_token_id=None)
    assert list(alone.token_ids) == expected[0, 3:].tolist()
    assert {run.token_ids for run in (*runs.values(), again, looked_up, *likeliest)} == {alone.token_ids}
    # The first round is no decode time: of one token alone, of up to five drafted ones and one more.
    assert alone.tokens == 59
    assert 54 <= runs["gamma5"].tokens <= 59
    assert again.tokens == runs["default"].tokens
    assert all(run.seconds > 0 for run in (alone, *runs.values()))
    assert all(first.token_ids == second.token_ids != alone.token_ids for first, second in sampled)


async def test_an_assistant_that_does_not_fit_is_told_and_left_out(folder: Path) -> None:
    async with bare_loop(folder, "stranger") as loop:
        assert not loop.has_assistant
        assert "ValueError: The main and assistant models have different tokenizers" in loop.no_assistant
        assert len((await loop.run(GenerationRequest((1, 2), sampling=GREEDY, max_tokens=3))).token_ids) == 3


async def test_a_bare_loop_that_cannot_load_says_why(folder: Path) -> None:
    with pytest.raises(ServiceUnavailable, match="bare loop ended with exit code 1"):
        async with bare_loop(folder / "missing", "draft"):
            pass


def test_the_baselines_are_free_of_our_runtime_and_cost_no_import_of_a_library() -> None:
    modules = "specgate_lab.peers.hf_assisted, specgate_lab.peers.hf_baseline"
    code = f"import sys, {modules}; print({{'torch', 'transformers', 'specgate'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
