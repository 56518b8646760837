"""Whoever brings a token, its log-probability is the target's own: that of transformers over the text that came out."""

import asyncio
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams, TokenLogprobs, TokenSource, Verification
from tests.support import guessing_drafter
from tests.support.grammars import regex
from tests.support.in_process import serving
from tests.support.models import TOKENIZER_SIZE, Mix, eager_logits, eager_model, write_llama
from tests.support.orchestrating import connected

NUM_TOP = 3
MAX_TOKENS = 24
END = TOKENIZER_SIZE - 1
LETTERS, FEWEST, MOST = set("abcdefgh "), 12, 30
PROMPT = "the rain in here then there, on the inner reins of her heron: " * 2
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "shared noise": {"verification": Verification.SHARED_NOISE},
    "rejection": {"verification": Verification.REJECTION},
}
WEIGHED = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.2,
    "logit_bias": {7: 4.0, 9: -9.0},
}
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "weighed": WEIGHED,
    "grammar": {"grammar": regex(f"[a-h ]{{{FEWEST},{MOST}}}")},
    # Every other token would end it.
    "min_tokens": {"min_tokens": 15, "stop_token_ids": frozenset(range(0, TOKENIZER_SIZE, 2))},
}
PLANS: tuple[dict[str, Any], ...] = (
    {"gamma": 4, "gate": Gate.NONE},
    {"gamma": 4, "gate": Gate.TARGET_CONFIDENCE, "gate_threshold": 0.3},
    {"gate": Gate.AUTO},
)
DRAFTERS: dict[str, dict[str, Any]] = {"run-ahead": {"run_ahead": 16}, "no run-ahead": {"run_ahead": 0}}
EVERY_SOURCE = {TokenSource.ACCEPTED, TokenSource.RECOVERED, TokenSource.BONUS, TokenSource.SOLO}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    like: dict[str, Any] = {"vocab_size": TOKENIZER_SIZE, "tokenizer": True, "eos_token_id": END}
    write_llama(folder / "target", seed=1, **like)
    write_llama(folder / "draft", seed=2, mix=Mix(1, 0.97), **like)
    return folder


def request_of(prompt: tuple[int, ...], **fields: Any) -> GenerationRequest:
    names = SamplingParams.__dataclass_fields__
    sampling = SamplingParams(**{name: fields.pop(name) for name in list(fields) if name in names})
    return GenerationRequest(prompt, sampling, MAX_TOKENS, seed=5, logprobs=NUM_TOP, prompt_logprobs=NUM_TOP, **fields)


class Expected:
    """Log-probabilities by transformers alone, and by what the grammar says in words."""

    def __init__(self, folder: Path, tokenizer: TextTokenizer) -> None:
        self._model = eager_model(folder)
        self._text = cache(lambda token_id: tokenizer.decode([token_id]))

    def check(self, request: GenerationRequest, deltas: Sequence[Delta]) -> None:
        """Compare what a request was told, of its prompt and of its answer."""
        prompt, answer = request.prompt_token_ids, tuple(i for delta in deltas for i in delta.token_ids)
        logits = eager_logits(self._model, [[*prompt, *answer]])[0, :-1]
        told_of_prompt = [one for delta in deltas for one in delta.prompt_logprobs]
        told = [one for delta in deltas for one in delta.logprobs]
        cut = len(prompt) - 1
        expect_told(told_of_prompt, logits[:cut], prompt[1:])
        expect_told(told, logits[cut:] if request.grammar is None else self._masked(logits[cut:], answer), answer)

    def _masked(self, logits: torch.Tensor, answer: Sequence[int]) -> torch.Tensor:
        lengths = [sum(len(self._text(one)) for one in answer[:i]) for i in range(len(answer))]
        forbidden = [[not self._may_follow(length, one) for one in range(TOKENIZER_SIZE)] for length in lengths]
        return logits.masked_fill(torch.tensor(forbidden), -torch.inf)

    def _may_follow(self, length: int, token_id: int) -> bool:
        if token_id == END:
            return length >= FEWEST
        text = self._text(token_id)
        return set(text) <= LETTERS and length + len(text) <= MOST


def expect_told(told: Sequence[TokenLogprobs], logits: torch.Tensor, token_ids: Sequence[int]) -> None:
    raw = logits.float().log_softmax(-1)
    assert len(told) == len(raw) == len(token_ids)
    assert [one.logprob for one in told] == pytest.approx(raw[range(len(raw)), list(token_ids)].tolist(), abs=1e-4)
    for one, row in zip(told, raw, strict=True):
        possible = [value for value in row.topk(NUM_TOP).values.tolist() if value > -torch.inf]
        assert [value for _, value in one.top] == pytest.approx(possible, abs=1e-4)
        assert [float(row[token_id]) for token_id, _ in one.top] == pytest.approx(possible, abs=1e-4)


async def told_by(
    orchestrator: Orchestrator, request: GenerationRequest, slots: asyncio.Semaphore
) -> tuple[list[Delta], int]:
    """Return what a request was told, and in how many rounds the proposal was there before it was asked for."""
    async with slots, orchestrator.generate(request) as generation:
        return [delta async for delta in generation], sum(generation.stats.prepared)


@pytest.mark.parametrize("settings", DRAFTERS.values(), ids=DRAFTERS)
async def test_they_are_those_of_transformers_whoever_brings_the_token(
    folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    guessing_drafter.guess(monkeypatch)
    tokenizer = TextTokenizer.load(str(folder / "target"))
    assert tokenizer is not None
    expected, prompt = Expected(folder / "target", tokenizer), tokenizer.encode(PROMPT)
    every = product(KINDS.values(), RULES.values(), PLANS)
    requests = [request_of(prompt, **kind, **rule, **plan) for kind, rule, plan in every]
    async with (
        serving("drafter", folder / "draft", **settings) as drafter,
        serving("verifier", folder / "target") as verifier,
        connected([drafter], [verifier], tokenizer=folder / "target") as orchestrator,
    ):
        # A drafter that always has others to serve prepares nothing.
        slots = asyncio.Semaphore(3)
        told = await asyncio.gather(*(told_by(orchestrator, request, slots) for request in requests))
    seen: set[TokenSource] = set()
    for request, (deltas, _) in zip(requests, told, strict=True):
        expected.check(request, deltas)
        sources = {source for delta in deltas for source in delta.sources}
        assert request.gate is not Gate.NONE or TokenSource.ACCEPTED in sources
        seen |= sources
    assert seen == EVERY_SOURCE
    assert (sum(num_prepared for _, num_prepared in told) > 0) == (settings["run_ahead"] > 0)
