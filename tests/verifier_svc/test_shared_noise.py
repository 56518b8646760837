"""Shared noise and greedy: one text for a seed, however it was drafted, gated, interrupted or resumed."""

from dataclasses import replace
from itertools import pairwise, product
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM

from specgate.types import ALWAYS_SOLO, FinishReason, SamplingParams, SessionSpec, Verification
from tests.support.mixed import PLANS, SAMPLINGS
from tests.support.models import Mix, make_runner, run_all, write_model
from tests.support.sessions import Pair, Plan, decode, was_interrupted

VOCAB_SIZE, NUM_TOKENS = 64, 24
PROMPTS = [(1, 2, 3), (5,), tuple(range(10, 40))]
ALONE = Plan(solo_below=ALWAYS_SOLO)


def make_spec(prompt: tuple[int, ...], sampling: SamplingParams, seed: int = 1, **fields: Any) -> SessionSpec:
    settings = {"max_tokens": NUM_TOKENS, "verification": Verification.SHARED_NOISE, **fields}
    return SessionSpec(prompt_token_ids=prompt, sampling=sampling, seed=seed, **settings)


class Case(NamedTuple):
    """A pair, and where its target is."""

    folder: Path
    pair: Pair


LLAMA = {"model_type": "llama", "vocab_size": VOCAB_SIZE, "layers": 1}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llamas": ({**LLAMA, "seed": 1}, {**LLAMA, "seed": 2, "mix": Mix(1, 0.98)}),
    "sliding window, other architecture": (
        {**LLAMA, "model_type": "mistral", "seed": 3, "sliding_window": 8},
        {**LLAMA, "model_type": "gpt2", "seed": 3},
    ),
}


@pytest.fixture(scope="module", params=PAIRS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("pair")
    models = zip(("target", "draft"), PAIRS[request.param], strict=True)
    paths = [write_model(folder / name, **model) for name, model in models]
    return Case(paths[0], Pair(*(make_runner(path, kv_tokens=128 * 128, page_size=128) for path in paths)))


@pytest.mark.parametrize("name", SAMPLINGS)
def test_one_text_for_a_seed(name: str, case: Case) -> None:
    sampling, plans = SAMPLINGS[name], list(PLANS.values())
    specs = [make_spec(prompt, sampling, seed=i) for i, prompt in enumerate(PROMPTS)]
    expected = run_all([decode(case.pair, spec, ALONE) for spec in specs])
    actual = run_all([decode(case.pair, spec, plan) for plan in plans for spec in specs])
    for (plan, spec), generation in zip(product(PLANS, specs), actual, strict=True):
        assert generation.token_ids == expected[spec.seed].token_ids, (plan, spec.seed)
    assert all(generation.finish_reason is FinishReason.LENGTH for generation in actual)
    assert len({tuple(generation.token_ids) for generation in expected}) == len(PROMPTS)


@pytest.mark.parametrize("name", ["plain", "greedy", "all"])
def test_no_stop_token_before_the_least_number_of_tokens_and_one_text_for_a_seed(name: str, case: Case) -> None:
    stop = frozenset(range(0, VOCAB_SIZE, 2))
    specs = [
        make_spec(PROMPTS[0], SAMPLINGS[name], seed, stop_token_ids=stop, min_tokens=num)
        for seed, num in enumerate((0, 7, 7, 7, NUM_TOKENS))
    ]
    texts: dict[int, list[int]] = {}
    for plan in (ALONE, PLANS["one by one"], PLANS["gamma 4"], PLANS["gamma 8, gate, short solo runs"]):
        generations = run_all([decode(case.pair, spec, plan) for spec in specs])
        for spec, generation in zip(specs, generations, strict=True):
            assert not stop.intersection(generation.token_ids[: spec.min_tokens])
            assert texts.setdefault(spec.seed, generation.token_ids) == generation.token_ids
    assert all(spec.min_tokens <= len(texts[spec.seed]) for spec in specs)
    # Without the bar they end sooner, behind it at once.
    assert len(texts[0]) < 7
    assert min(len(texts[seed]) for seed in (1, 2, 3)) < NUM_TOKENS


def test_drafts_are_used_and_solo_runs_are_interrupted(case: Case) -> None:
    """The plans above do what their names say, or the equality of texts would mean little."""
    spec = make_spec(PROMPTS[0], SAMPLINGS["plain"])
    results = dict(zip(PLANS, run_all([decode(case.pair, spec, plan) for plan in PLANS.values()]), strict=True))
    assert results["gamma 8"].num_accepted > 2
    assert results["gamma 4, gate"].num_solo > 5
    ungated = [generation for name, generation in results.items() if "gate" not in name and "over" not in name]
    assert {generation.num_solo for generation in ungated} == {0}
    assert len({len(proposal) for proposal in results["gamma 8, draft confidence"].proposals}) > 2
    for name in PLANS:
        interrupted = sum(map(was_interrupted, results[name].verdicts))
        assert (interrupted > 1) == ("overtaken" in name), name


def generate(folder: Path, prompt: tuple[int, ...], **options: Any) -> list[int]:
    """The target alone, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM_TOKENS, pad_token_id=0, **options
    )
    return output[0, len(prompt) :].tolist()


def test_greedy_is_what_transformers_generates(case: Case) -> None:
    greedy, penalty = SAMPLINGS["greedy"], SamplingParams(temperature=0.0, repetition_penalty=1.4)
    expected = [(make_spec(prompt, greedy), generate(case.folder, prompt)) for prompt in PROMPTS]
    expected.append((make_spec(PROMPTS[2], penalty), generate(case.folder, PROMPTS[2], repetition_penalty=1.4)))
    stop = expected[0][1][NUM_TOKENS // 2]
    stopped = generate(case.folder, PROMPTS[0], eos_token_id=stop)
    expected.append((make_spec(PROMPTS[0], greedy, stop_token_ids=frozenset({stop})), stopped))
    for spec, text in expected:
        for generation in run_all([decode(case.pair, spec, plan) for plan in PLANS.values()]):
            assert generation.near_ties or generation.token_ids == text
            assert generation.finish_reason is (FinishReason.STOP if spec.stop_token_ids else FinishReason.LENGTH)
    assert len(stopped) < NUM_TOKENS


def test_a_session_that_starts_in_the_middle_goes_on_with_the_same_text(case: Case) -> None:
    spec = make_spec(PROMPTS[0], SAMPLINGS["all"], seed=9)
    (whole,) = run_all([decode(case.pair, spec, Plan(4))])
    for emitted in (1, 7, NUM_TOKENS - 1):
        rest, plans = replace(spec, output_token_ids=tuple(whole.token_ids[:emitted])), (ALONE, Plan(5, solo_below=0.5))
        for generation in run_all([decode(case.pair, rest, plan) for plan in plans]):
            assert generation.token_ids == whole.token_ids[emitted:]


def test_the_draft_agrees_more_often_than_by_chance(case: Case) -> None:
    """Both sides use the same noise; with noise of its own the same draft is right less often."""
    specs = [make_spec(PROMPTS[0], SAMPLINGS["plain"], seed) for seed in range(12)]
    shared = run_all([decode(case.pair, spec, Plan(1)) for spec in specs])
    assert len({tuple(generation.token_ids) for generation in shared}) == len(specs)
    by_chance = [sum(map(eq, one.token_ids, other.token_ids)) for one, other in pairwise(shared)]
    assert sum(generation.num_accepted for generation in shared) > 2 * sum(by_chance)
