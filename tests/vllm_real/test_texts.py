"""Stock vLLM with our drafter writes what it writes alone; how fast, and how many tokens a step."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from orchestrator import open_orchestrator
from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams
from tests.real import pair as smollm2
from tests.support.chisquare import joint_law, p_value
from tests.support.orchestrating import run
from tests.support.services import HELD_OUT_PROMPTS, PAIR, running
from tests.vllm_real.conftest import AddRow
from tests.vllm_real.engine import GAMMA, drafting, offline, speculation

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

NUM_PROMPTS, NUM_TOKENS, NUM_SAMPLES = 32, 64, 4000
ALONE = {"batch": 1, "temperature": 0.0, "max_tokens": NUM_TOKENS}
AT_ONCE = {**ALONE, "batch": 8}
PAIRS = {"bundled": (PAIR / "target", PAIR / "draft"), "SmolLM2-135M": (smollm2.TARGET, smollm2.DRAFT)}
ON_CORE_1 = ("taskset", "-c", "1")
TOP_K = 4


def prompts_of(target: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(target)
    return [list(tokenizer(text)["input_ids"]) for text in HELD_OUT_PROMPTS[:NUM_PROMPTS]]


def num_equal(one: list[Any], other: list[Any]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def rates(found: dict[str, Any], alone: dict[str, Any]) -> dict[str, float]:
    return {"tokens_per_s": found["tokens_per_s"], "ratio_to_vllm": found["tokens_per_s"] / alone["tokens_per_s"]}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path, list[Any]]:
    """A pair, and what vLLM alone writes, one at a time and eight."""
    target, draft = PAIRS[request.param]
    if not target.exists():
        pytest.skip("no real pair: run scripts/real_model")
    found = offline(tmp_path_factory.mktemp("alone"), target, prompts_of(target), ALONE, AT_ONCE)
    return request.param, target, draft, found


def test_greedy_texts_are_vllms_own(pair: Any, row: AddRow, tmp_path: Path) -> None:
    name, target, draft, (alone, at_once) = pair
    stats = tmp_path / "stats.json"
    with running("drafter", draft, prefix=ON_CORE_1) as drafter:
        llm = drafting(drafter.endpoint, stats=str(stats))
        found = offline(tmp_path, target, prompts_of(target), ALONE, AT_ONCE, **llm)
    us = json.loads(stats.read_text())["propose_us"]
    equal = [num_equal(one["texts"], other["texts"]) for one, other in zip(found, (alone, at_once), strict=True)]
    row(f"{name}: vLLM alone", tokens_per_s=alone["tokens_per_s"], ratio_to_vllm=1.0)
    row(f"{name}: vLLM alone, 8 at a time", tokens_per_s=at_once["tokens_per_s"], ratio_to_vllm=1.0)
    told = {"hit_us": us.get("hit"), "miss_us": us.get("miss")}
    row(f"{name}: our drafter", **rates(found[0], alone), text_equal=f"{equal[0]} of {NUM_PROMPTS}", **told)
    row(f"{name}: our drafter, 8 at a time", **rates(found[1], at_once), text_equal=f"{equal[1]} of {NUM_PROMPTS}")
    assert found[0]["accepted_tokens"] > 0
    # At a near tie of vLLM's a text may part.
    assert min(equal) >= NUM_PROMPTS - (0 if name == "bundled" else 1)


@pytest.mark.parametrize("way", ["empty drafts", "its own draft_model", "ngram"])
def test_other_ways_of_vllm(pair: Any, way: str, row: AddRow, tmp_path: Path) -> None:
    """For comparison."""
    name, target, draft, (alone, at_once) = pair
    methods = {
        "empty drafts": speculation("proposers.Empty"),
        "its own draft_model": {"method": "draft_model", "model": str(draft), "num_speculative_tokens": GAMMA},
        "ngram": {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": GAMMA},
    }
    jobs = (ALONE, AT_ONCE) if way == "empty drafts" else (ALONE,)
    found, *more = offline(tmp_path, target, prompts_of(target), *jobs, speculative_config=methods[way])
    row(
        f"{name}: {way}",
        **rates(found, alone),
        text_equal=f"{num_equal(found['texts'], alone['texts'])} of {NUM_PROMPTS}",
    )
    for one in more:
        row(f"{name}: {way}, 8 at a time", **rates(one, at_once))


async def test_a_step_gives_as_many_tokens_as_with_our_own_verifier(row: AddRow, tmp_path: Path) -> None:
    target, draft = PAIRS["bundled"]
    prompts = prompts_of(target)
    with running("drafter", draft) as drafter:
        llm = drafting(drafter.endpoint, gate="none", wait_ms=2000)
        (found,) = offline(tmp_path, target, prompts, ALONE, **llm)
    greedy = SamplingParams(temperature=0.0)
    options = {"gamma": GAMMA, "gate": Gate.NONE, "ignore_eos": True}
    requests = [GenerationRequest(tuple(ids), greedy, NUM_TOKENS, **options) for ids in prompts]
    async with open_orchestrator(str(target), str(draft)) as orchestrator:
        ours = [await run(orchestrator, request) for request in requests]
    accepted, drafts = (
        sum(values) for values in zip(*((one.stats.accepted, one.stats.rounds) for one in ours), strict=True)
    )
    own, stock = 1 + accepted / drafts, 1 + found["accepted_tokens"] / found["drafts"]
    row("bundled: tokens a drafted step", tokens_per_forward=stock, seen=f"{own:.2f} with our own verifier")
    assert stock == pytest.approx(own, rel=0.05)


def test_two_tensor_parallel_ranks(row: AddRow, tmp_path: Path) -> None:
    target, draft = PAIRS["bundled"]
    prompts, ranks = prompts_of(target), {"cores": "0|1", "tensor_parallel_size": 2}
    (alone,) = offline(tmp_path, target, prompts, AT_ONCE, **ranks)
    with running("drafter", draft) as drafter:
        (found,) = offline(tmp_path, target, prompts, AT_ONCE, **ranks, **drafting(drafter.endpoint))
    equal = num_equal(found["texts"], alone["texts"])
    row("bundled: two ranks, 8 at a time", **rates(found, alone), text_equal=f"{equal} of {NUM_PROMPTS}")
    assert found["accepted_tokens"] > 0
    assert equal == NUM_PROMPTS


def to_int8(source: Path, folder: Path) -> Path:
    """Write a model as compressed-tensors int8: weights with a scale a row, activations with one a token."""
    shutil.copytree(source, folder)
    tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        tensors[name] = weight
        if "_proj.weight" in name:
            scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
            tensors[name] = (weight.float() / scale).round().clamp(-127, 127).char()
            tensors[name.replace("weight", "weight_scale")] = scale
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    numbers = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, "strategy": "channel", "dynamic": False},
        "input_activations": {**numbers, "strategy": "token", "dynamic": True},
    }
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": group},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_int8_weights(row: AddRow, tmp_path: Path) -> None:
    target, draft = PAIRS["bundled"]
    int8, prompts = to_int8(target, tmp_path / "int8"), prompts_of(target)
    (alone,) = offline(tmp_path, int8, prompts, ALONE)
    with running("drafter", draft, prefix=ON_CORE_1) as drafter:
        (found,) = offline(tmp_path, int8, prompts, ALONE, **drafting(drafter.endpoint))
    equal = num_equal(found["texts"], alone["texts"])
    row("bundled: int8 weights", **rates(found, alone), text_equal=f"{equal} of {NUM_PROMPTS}")
    assert found["accepted_tokens"] > 0
    assert equal >= NUM_PROMPTS - 1


def test_above_temperature_0_the_law_is_the_targets(row: AddRow, tmp_path: Path) -> None:
    """With vLLM's sampler for CPUs repaired. The law is transformers' own, so that both have to be right."""
    target, draft = PAIRS["bundled"]
    prompt = prompts_of(target)[0]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)

    def next_law(text: tuple[int, ...]) -> list[float]:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *text]])).logits[0, -1]
        top = logits.topk(TOP_K)
        return torch.zeros_like(logits).scatter(0, top.indices, top.values.softmax(-1)).tolist()

    law = joint_law(next_law, 3)
    job = {"batch": 8, "temperature": 1.0, "top_k": TOP_K, "max_tokens": 3}
    with running("drafter", draft) as drafter:
        llm = drafting(drafter.endpoint, model="proposers.Repaired", gate="none", wait_ms=2000)
        (found,) = offline(tmp_path, target, [prompt] * NUM_SAMPLES, job, **llm)
    p = p_value(Counter(map(tuple, found["texts"])), law)
    row("bundled: temperature 1, sampler repaired", seen=f"chi-square p {p:.3f} of {NUM_SAMPLES} texts")
    assert 0 < found["accepted_tokens"] < found["draft_tokens"]
    assert p > 1e-4
