"""OpenAI's own client against the HTTP door: over the fake model, and over the bundled pair in processes of its own."""

from collections.abc import AsyncIterator

import openai
import pytest

from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.decode.request import GenerationRequest
from specgate.types import SamplingParams
from tests.orchestrator.api.http_serving import MESSAGES, TURNS, Site, said_to, serving_http
from tests.support.models import eager_logits
from tests.support.orchestrating import connected, run
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service


@pytest.fixture
async def client(site: Site) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_chat_helper_that_puts_a_stream_together(client: openai.AsyncOpenAI) -> None:
    text = said_to(TURNS, 10)
    async with client.chat.completions.stream(
        model="fake", messages=MESSAGES, stop=text[6], logprobs=True, top_logprobs=1
    ) as stream:
        whole = await stream.get_final_completion()
    (choice,) = whole.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert choice.message.content == text[: text.index(text[6])]
    assert len(choice.logprobs.content) == text.index(text[6]) + 1


async def test_the_bundled_pair(bundled_services: tuple[Service, Service]) -> None:
    """Over HTTP it says what the facade says."""
    prompt, (drafter, verifier) = HELD_OUT_PROMPTS[0], bundled_services
    async with connected([drafter], [verifier]) as orchestrator:
        request_queue = RequestQueue(orchestrator, GatewaySettings(), Defaults(), "pair")
        ids = request_queue.tokenizer.encode(prompt)
        plain = await run(orchestrator, GenerationRequest(ids, SamplingParams(temperature=0.8), 48, seed=3))
        async with (
            serving_http(request_queue) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            stream = await client.completions.create(
                model="pair", prompt=prompt, temperature=0.8, max_tokens=48, seed=3, stream=True
            )
            assert "".join([chunk.choices[0].text async for chunk in stream]) == plain.text
            whole = await client.completions.create(model="pair", prompt=prompt, max_tokens=8, logprobs=2)
            assert all(len(top) in (2, 3) for top in whole.choices[0].logprobs.top_logprobs)
            echoed = await client.completions.create(model="pair", prompt=prompt, max_tokens=0, logprobs=0, echo=True)
            logprobs = echoed.choices[0].logprobs.token_logprobs
            raw = eager_logits(PAIR / "target", [ids])[0].float().log_softmax(-1)
            assert logprobs is not None
            assert (echoed.choices[0].text, logprobs[0]) == (prompt, None)
            assert logprobs[1:] == pytest.approx(raw[range(len(ids) - 1), ids[1:]].tolist(), abs=1e-4)
            with pytest.raises(openai.BadRequestError, match="chat template"):
                await client.chat.completions.create(model="pair", messages=MESSAGES)
