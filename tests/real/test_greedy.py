"""With a real model, one chat at a time: greedy text is token for token what transformers' ``generate`` writes."""

import pytest

from orchestrator.decode.request import GenerationRequest
from specgate.types import FinishReason
from tests.real.chats import CHATS
from tests.real.greedy import GREEDY, SETTINGS, expect_generated
from tests.real.pair import MAX_TOKENS, Services, generated, tokenizer
from tests.support.orchestrating import run

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.mark.parametrize("setting", SETTINGS)
async def test_greedy_is_what_transformers_generates(services: Services, setting: str) -> None:
    await expect_generated(services, setting, at_once=1)


async def test_the_question_of_the_origin_experiment(services: Services) -> None:
    request = GenerationRequest(tokenizer().encode_chat(CHATS["origin"]), GREEDY, MAX_TOKENS)
    async with services.connected() as orchestrator:
        generation = await run(orchestrator, request)
    assert "Taipei" in generation.text
    assert generation.finish_reason is FinishReason.STOP
    assert generation.token_ids == generated(request.prompt_token_ids)
