"""With a real model: a seeded text is a function of seed, prompt and target alone; rejection keeps to its limits."""

from dataclasses import replace

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import FinishReason, SamplingParams, Verification
from tests.real.pair import Services, prompts
from tests.support.orchestrating import expect_texts, run_all

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

SAMPLINGS = {
    "temperature 0.8": SamplingParams(temperature=0.8),
    "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
}
GATES = (Gate.NONE, Gate.AUTO)
NUM_CHATS, MAX_TOKENS, AT_ONCE = 6, 32, 4


def alone(sampling: SamplingParams, first_seed: int) -> list[GenerationRequest]:
    """Return requests for the target alone, each with a seed of its own."""
    seeded = enumerate(prompts()[1 : NUM_CHATS + 1], start=first_seed)
    return [GenerationRequest(ids, sampling, MAX_TOKENS, seed, gamma=0) for seed, ids in seeded]


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_the_same_seed_gives_the_same_text_and_another_one_another(services: Services, sampling: str) -> None:
    requests, reseeded = alone(SAMPLINGS[sampling], first_seed=1), alone(SAMPLINGS[sampling], first_seed=101)
    async with services.connected() as orchestrator:
        expected = [one.token_ids for one in await run_all(orchestrator, requests, AT_ONCE)]
        others = [one.token_ids for one in await run_all(orchestrator, reseeded, AT_ONCE)]
        assert all(text != other for text, other in zip(expected, others, strict=True))
        for gate in GATES:
            drafted = [replace(request, gamma=4, gate=gate) for request in requests]
            generations = await run_all(orchestrator, drafted, AT_ONCE)
            expect_texts(f"{sampling}, {gate}", generations, expected)
            assert gate is Gate.AUTO or sum(one.stats.accepted for one in generations) > 0


async def test_rejection_keeps_to_its_limits(services: Services) -> None:
    requests = [
        replace(request, gamma=4, gate=gate, verification=Verification.REJECTION)
        for request, gate in zip(alone(SAMPLINGS["top-p 0.9"], first_seed=1), 3 * GATES, strict=True)
    ]
    async with services.connected() as orchestrator:
        generations = await run_all(orchestrator, requests, AT_ONCE)
    for generation in generations:
        is_full = len(generation.token_ids) == MAX_TOKENS
        assert 0 < len(generation.token_ids) <= MAX_TOKENS
        assert is_full or generation.finish_reason is FinishReason.STOP
    assert 0 < sum(one.stats.accepted for one in generations) < sum(one.stats.drafted for one in generations)
