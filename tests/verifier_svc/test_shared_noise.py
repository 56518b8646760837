"""Shared noise and greedy: one text for a seed, however it was drafted, gated, interrupted or resumed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM

from specgate.types import ALWAYS_SOLO, FinishReason, SamplingParams, SessionSpec, Verification
from tests.support.chisquare import p_value
from tests.support.mixed import PLANS, SAMPLINGS
from tests.support.models import Mix, eager_logits, make_runner, run_all, write_llama, write_model
from tests.support.sessions import Generation, Pair, Plan, decode, was_interrupted

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


MakeFolder = Callable[[Path], Path]
PAIRS: dict[str, tuple[MakeFolder, MakeFolder]] = {
    "llamas": (
        lambda folder: write_llama(folder, VOCAB_SIZE, layers=1, seed=1),
        lambda folder: write_llama(folder, VOCAB_SIZE, layers=1, seed=2, mix=Mix(1, 0.98)),
    ),
    "sliding window, other architecture": (
        lambda folder: write_model(folder, "mistral", vocab_size=VOCAB_SIZE, layers=1, seed=3, sliding_window=8),
        lambda folder: write_model(folder, "gpt2", vocab_size=VOCAB_SIZE, layers=1, seed=3),
    ),
}


@pytest.fixture(scope="module", params=PAIRS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("pair")
    write_target, write_draft = PAIRS[request.param]
    target, draft = write_target(folder / "target"), write_draft(folder / "draft")
    return Case(target, Pair(*(make_runner(path, kv_tokens=128 * 128, page_size=128) for path in (target, draft))))


@pytest.mark.parametrize("name", SAMPLINGS)
def test_one_text_for_a_seed(name: str, case: Case) -> None:
    sampling, plans = SAMPLINGS[name], list(PLANS.values())
    specs = [make_spec(prompt, sampling, seed=i) for i, prompt in enumerate(PROMPTS)]
    expected = run_all([decode(case.pair, spec, ALONE) for spec in specs])
    actual = run_all([decode(case.pair, spec, plan) for plan in plans for spec in specs])
    compared = 0
    for (plan, spec), generation in zip(product(PLANS, specs), actual, strict=True):
        alone = expected[spec.seed]
        if alone.near_ties + generation.near_ties == 0:
            assert generation.token_ids == alone.token_ids, (plan, spec.seed)
            compared += 1
    assert compared > 0.8 * len(actual)
    assert all(generation.finish_reason is FinishReason.LENGTH for generation in actual)
    assert len({tuple(generation.token_ids) for generation in expected}) == len(PROMPTS)


def test_drafts_are_used_and_solo_runs_are_interrupted(case: Case) -> None:
    """The plans above do what their names say, or the equality of texts would mean little."""
    spec = make_spec(PROMPTS[0], SAMPLINGS["plain"])
    results = dict(zip(PLANS, run_all([decode(case.pair, spec, plan) for plan in PLANS.values()]), strict=True))
    assert results["gamma 8"].num_accepted > 2
    assert results["gamma 4, gate"].num_solo > 5
    assert {
        generation.num_solo for name, generation in results.items() if "gate" not in name and "over" not in name
    } == {0}
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


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_is_what_transformers_generates(prompt: tuple[int, ...], case: Case) -> None:
    expected = generate(case.folder, prompt)
    spec = make_spec(prompt, SAMPLINGS["greedy"])
    for generation in run_all([decode(case.pair, spec, plan) for plan in PLANS.values()]):
        assert generation.near_ties or generation.token_ids == expected


def test_greedy_with_a_repetition_penalty_is_what_transformers_generates(case: Case) -> None:
    expected = generate(case.folder, PROMPTS[2], repetition_penalty=1.4)
    spec = make_spec(PROMPTS[2], SamplingParams(temperature=0.0, repetition_penalty=1.4))
    for generation in run_all([decode(case.pair, spec, plan) for plan in PLANS.values()]):
        assert generation.near_ties or generation.token_ids == expected


def test_greedy_stops_where_transformers_stops(case: Case) -> None:
    free = generate(case.folder, PROMPTS[0])
    stop = free[len(free) // 2]
    expected = generate(case.folder, PROMPTS[0], eos_token_id=stop)
    spec = make_spec(PROMPTS[0], SAMPLINGS["greedy"], stop_token_ids=frozenset({stop}))
    for generation in run_all([decode(case.pair, spec, plan) for plan in PLANS.values()]):
        assert generation.token_ids == expected == free[: free.index(stop) + 1]
        assert generation.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("emitted", [1, 7, NUM_TOKENS - 1])
def test_a_session_that_starts_in_the_middle_goes_on_with_the_same_text(emitted: int, case: Case) -> None:
    spec = make_spec(PROMPTS[0], SAMPLINGS["all"], seed=9)
    (whole,) = run_all([decode(case.pair, spec, Plan(4))])
    rest = replace(spec, output_token_ids=tuple(whole.token_ids[:emitted]))
    for generation in run_all([decode(case.pair, rest, plan) for plan in (ALONE, Plan(3), Plan(5, solo_below=0.5))]):
        assert generation.token_ids == whole.token_ids[emitted:]


def test_another_seed_is_another_text(case: Case) -> None:
    specs = [make_spec(PROMPTS[0], SAMPLINGS["plain"], seed) for seed in (0, 1, (1 << 64) - 1)]
    texts = [tuple(generation.token_ids) for generation in run_all([decode(case.pair, s, Plan(4)) for s in specs])]
    assert len(set(texts)) == 3


def test_the_draft_agrees_more_often_than_by_chance(case: Case) -> None:
    """Both sides use the same noise; with noise of its own the same draft is right less often."""

    def accepted(generations: list[Generation]) -> int:
        return sum(generation.num_accepted for generation in generations)

    specs = [make_spec(PROMPTS[0], SAMPLINGS["plain"], seed) for seed in range(12)]
    shared = run_all([decode(case.pair, spec, Plan(1)) for spec in specs])
    same_text = {tuple(generation.token_ids) for generation in shared}
    assert len(same_text) == len(specs)
    other_noise = [
        sum(a == b for a, b in zip(one.token_ids, other.token_ids, strict=True)) for one, other in pairwise(shared)
    ]
    assert accepted(shared) > 2 * sum(other_noise)


FEW, SHORT = 6, 3


@pytest.mark.parametrize("plan", [Plan(2), Plan(3, solo_below=0.5, overtake=1)])
def test_texts_of_many_seeds_follow_the_targets_law(plan: Plan, tmp_path: Path) -> None:
    write_llama(tmp_path / "target", FEW, layers=1, hidden=16, seed=1)
    write_llama(tmp_path / "draft", FEW, layers=1, hidden=16, seed=2, mix=Mix(1, 0.7))
    pair = Pair(*(make_runner(tmp_path / name, kv_tokens=16 * 2000, page_size=16) for name in ("target", "draft")))
    prompt = (1, 2)
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(SHORT):
        texts = list(law)
        rows = eager_logits(tmp_path / "target", [[*prompt, *text] for text in texts])[:, -1].double().softmax(-1)
        law = {(*text, i): law[text] * float(row[i]) for text, row in zip(texts, rows, strict=True) for i in range(FEW)}
    specs = [make_spec(prompt, SamplingParams(), seed, max_tokens=SHORT) for seed in range(2000)]
    counts = Counter(tuple(generation.token_ids) for generation in run_all([decode(pair, s, plan) for s in specs]))
    assert p_value(counts, law) > 1e-3
