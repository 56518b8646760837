"""With a real model: greedy text is token for token what transformers' ``generate`` writes of each chat alone."""

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import FinishReason, SamplingParams
from tests.real.chats import CHATS
from tests.real.pair import MAX_TOKENS, Services, generated, prompts, tokenizer
from tests.support.orchestrating import expect_texts, run, run_all

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

GREEDY = SamplingParams(temperature=0.0)
SETTINGS = {
    "the target alone": (0, Gate.NONE),
    "no gate": (4, Gate.NONE),
    "target confidence": (4, Gate.TARGET_CONFIDENCE),
    "draft confidence": (4, Gate.DRAFT_CONFIDENCE),
    "auto": (8, Gate.AUTO),
}
"""γ and gate."""


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("setting", SETTINGS)
async def test_greedy_is_what_transformers_generates(services: Services, setting: str, at_once: int) -> None:
    """At a near tie, which is reported, one of the texts may part."""
    gamma, gate = SETTINGS[setting]
    requests = [GenerationRequest(ids, GREEDY, MAX_TOKENS, gamma=gamma, gate=gate) for ids in prompts()]
    async with services.connected() as orchestrator:
        generations = await run_all(orchestrator, requests, at_once)
    expected = [generated(ids) for ids in prompts()]
    expect_texts(f"{setting}, {at_once} at once", generations, expected, most_excused=1)
    accepted, drafted = (sum(getattr(one.stats, name) for one in generations) for name in ("accepted", "drafted"))
    print(f"accepted {accepted} of {drafted} drafts")
    # Where drafting does not pay, auto may well leave it.
    assert gate is Gate.AUTO or (accepted > 0) == (gamma > 0)
    assert all(one.stats.drafter_failures == 0 for one in generations)


async def test_the_question_of_the_origin_experiment(services: Services) -> None:
    request = GenerationRequest(tokenizer().encode_chat(CHATS["origin"]), GREEDY, MAX_TOKENS)
    async with services.connected() as orchestrator:
        generation = await run(orchestrator, request)
    assert "Taipei" in generation.text
    assert generation.finish_reason is FinishReason.STOP
    assert generation.token_ids == generated(request.prompt_token_ids)
