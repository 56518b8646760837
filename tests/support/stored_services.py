"""Both services with a model whose weights are codes: the text is that of the codes' numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams, Verification
from tests.support.orchestrating import connected, expect_texts, run_all
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service


class Served(NamedTuple):
    """Both services, the target's files, and what transformers generates of its numbers."""

    drafter: Service
    verifier: Service
    target: Path
    greedy: list[tuple[int, ...]]


def prompts() -> list[tuple[int, ...]]:
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    return [tuple(tokenizer.encode(text)) for text in HELD_OUT_PROMPTS[:6]]


def greedy_texts(model: Any) -> list[tuple[int, ...]]:
    """Return what transformers generates with a model of its own."""
    texts = []
    for ids in prompts():
        batch = torch.tensor([ids])
        out = model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=48)
        texts.append(tuple(out[0, len(ids) :].tolist()))
    return texts


async def expect_text_of_the_numbers(served: Served, temperature: float) -> None:
    """Compare texts with drafts to the target's alone, and greedy ones to those of transformers."""
    sampling = SamplingParams(temperature=temperature)
    alone = [GenerationRequest(ids, sampling, 48, seed=seed, gamma=0) for seed, ids in enumerate(prompts())]
    async with connected([served.drafter], [served.verifier], tokenizer=served.target) as orchestrator:
        expected = [one.token_ids for one in await run_all(orchestrator, alone)]
        for gamma, gate in ((4, Gate.NONE), (8, Gate.TARGET_CONFIDENCE), (4, Gate.AUTO)):
            generations = await run_all(orchestrator, [replace(one, gamma=gamma, gate=gate) for one in alone])
            expect_texts(f"gamma {gamma} gate {gate}", generations, expected)
            assert gate is Gate.AUTO or sum(one.stats.accepted for one in generations) > 0
        rejecting = [replace(one, gamma=4, verification=Verification.REJECTION) for one in alone]
        rejected = await run_all(orchestrator, rejecting)
    if temperature == 0.0:
        expect_texts("transformers", rejected, served.greedy)
