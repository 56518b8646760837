"""Rejection sampling through the real services has the target's joint law, by full enumeration and chi-square."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool
from specgate.types import SamplingParams, Verification
from tests.support.chisquare import p_value
from tests.support.models import write_llama
from tests.support.orchestrating import PATIENT, num_prepared, run_all
from tests.support.services import Service, running

VOCAB_SIZE = 6
EOS = 5
NUM_TOKENS = 4
# 32 run at a time. Where hardly anything is drafted sessions are closed faster than a busy drafter frees them.
FLAGS = ("--max-sessions", "512", "--kv-tokens", "262144")
PROMPT = (0, 1, 2)
Text = tuple[int, ...]

CASES = {
    "gate none": GenerationRequest(PROMPT, gamma=2, gate=Gate.NONE),
    "run-ahead": GenerationRequest(PROMPT, gamma=1, gate=Gate.NONE),
    "target confidence": GenerationRequest(PROMPT, gamma=2, gate=Gate.TARGET_CONFIDENCE, gate_threshold=0.3),
    "auto": GenerationRequest(PROMPT, gamma=3, gate=Gate.AUTO),
    "draft confidence": GenerationRequest(PROMPT, gamma=3, gate=Gate.DRAFT_CONFIDENCE, gate_threshold=0.4),
    "eos inside drafts": GenerationRequest(PROMPT, gamma=3, gate=Gate.NONE, stop_token_ids=frozenset({EOS})),
    "filters": GenerationRequest(PROMPT, SamplingParams(temperature=0.8, top_k=4), gamma=2, gate=Gate.NONE),
}
RUNS = [
    pytest.param(1_200, id="quick"),
    pytest.param(50_000, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    write_llama(folder / "target", vocab_size=VOCAB_SIZE, seed=1)
    write_llama(folder / "draft", vocab_size=VOCAB_SIZE, seed=2)
    return folder / "draft", folder / "target"


@pytest.fixture(scope="module")
def services(pair: tuple[Path, Path]) -> Iterator[tuple[Service, Service]]:
    # Of two rows for each of the sessions that run at a time.
    with (
        running("drafter", pair[0], *FLAGS, "--run-ahead", "64") as drafter,
        running("verifier", pair[1], *FLAGS) as verifier,
    ):
        yield drafter, verifier


def next_law(model: torch.nn.Module, ids: Text, sampling: SamplingParams) -> torch.Tensor:
    """The target's law of one token, by its own eager forward and nothing of ours."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1].double() / sampling.temperature
    if sampling.top_k:
        logits[logits < logits.topk(sampling.top_k).values[-1]] = -torch.inf
    return logits.softmax(-1)


def joint_law(model: torch.nn.Module, request: GenerationRequest) -> dict[Text, float]:
    """Every text of NUM_TOKENS tokens, or shorter ones that end in a stop token, with its probability."""
    law: dict[Text, float] = {(): 1.0}
    for _ in range(NUM_TOKENS):
        grown: dict[Text, float] = {}
        for text, probability in law.items():
            if text and text[-1] in request.stop_token_ids:
                grown[text] = probability
                continue
            step = next_law(model, PROMPT + text, request.sampling).tolist()
            grown |= {(*text, token_id): probability * p for token_id, p in enumerate(step)}
        law = grown
    return law


@pytest.mark.parametrize("num_runs", RUNS)
@pytest.mark.parametrize("case", CASES)
async def test_joint_law_of_four_tokens(
    services: tuple[Service, Service], pair: tuple[Path, Path], case: str, num_runs: int
) -> None:
    base = CASES[case]
    law = joint_law(AutoModelForCausalLM.from_pretrained(pair[1]), base)
    drafters, verifiers = StaticPool([services[0].endpoint]), StaticPool([services[1].endpoint])
    counts: Counter[Text] = Counter()
    num_rounds = accepted = recovered_rounds = prepared = 0
    async with await Orchestrator.connect(verifiers, drafters, None, timeouts=PATIENT) as orchestrator:
        for seeds in _batched(num_runs, 500):
            # Where a drafter is busy it guesses little.
            concurrency = 4 if case == "run-ahead" else 32
            generations = await run_all(orchestrator, [_seeded(base, seed) for seed in seeds], concurrency)
            counts.update(g.token_ids for g in generations)
            num_rounds += sum(g.stats.rounds for g in generations)
            accepted += sum(g.stats.accepted for g in generations)
            prepared += num_prepared(generations)
            recovered_rounds += sum(g.stats.drafted - g.stats.accepted for g in generations)
            assert all(g.stats.drafter_failures == 0 for g in generations)
    p = p_value(counts, law)
    print(f"{case}: {num_runs} runs, {num_rounds / num_runs:.2f} rounds a run, {prepared} prepared, p = {p:.3f}")
    assert accepted > 0
    assert recovered_rounds > 0
    assert p > 1e-3
    assert prepared > 0 or case != "run-ahead"


async def test_the_law_is_the_same_where_drafters_are_lost_in_mid_stream(
    services: tuple[Service, Service], pair: tuple[Path, Path]
) -> None:
    """Most texts are begun with a draft and finished without one, or with that of another session."""
    base = CASES["gate none"]
    law = joint_law(AutoModelForCausalLM.from_pretrained(pair[1]), base)
    flags = (*FLAGS, "--run-ahead", "64")
    with running("drafter", pair[0], *flags, module=("tests.support.leaving_drafter",)) as leaving:
        drafters, verifiers = StaticPool([leaving.endpoint]), StaticPool([services[1].endpoint])
        async with await Orchestrator.connect(verifiers, drafters, None, timeouts=PATIENT) as orchestrator:
            generations = await run_all(orchestrator, [_seeded(base, seed) for seed in range(1_200)], 32)
    lost = [g.stats for g in generations if g.stats.drafter_failures > 0 and g.stats.rounds > 0]
    num_accepted = sum(stats.accepted for stats in lost)
    p = p_value(Counter(g.token_ids for g in generations), law)
    print(f"{len(lost)} texts lost a drafter behind a round of it, {num_accepted} tokens accepted there, p = {p:.3f}")
    assert len(lost) > 300
    assert num_accepted > 30
    assert p > 1e-3


def _seeded(base: GenerationRequest, seed: int) -> GenerationRequest:
    return GenerationRequest(
        base.prompt_token_ids, base.sampling, NUM_TOKENS, seed, (), base.stop_token_ids, gamma=base.gamma,
        gate=base.gate, gate_threshold=base.gate_threshold, verification=Verification.REJECTION,
    )  # fmt: skip


def _batched(total: int, size: int) -> list[range]:
    return [range(start, min(total, start + size)) for start in range(0, total, size)]
