"""OpenAI's own client against the HTTP door: over the fake model, and over the bundled pair in processes of its own."""

from collections.abc import AsyncIterator

import openai
import pytest

from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.decode.request import GenerationRequest
from specgate.types import SamplingParams
from tests.orchestrator.api.http_serving import TURN, Site, ascii_tokenizer, open_site, serving_http
from tests.orchestrator.api.queues import expected
from tests.support.orchestrating import connected, run
from tests.support.services import HELD_OUT_PROMPTS, PAIR, running

TOKENIZER = ascii_tokenizer()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as site:
        yield site


@pytest.fixture
async def client(site: Site) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def said(prompt: str, max_tokens: int) -> str:
    ids = TOKENIZER.encode(prompt, add_special_tokens=False)
    return TOKENIZER.decode(expected(GenerationRequest(ids, max_tokens=max_tokens)))


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["fake"]
    assert (await client.models.retrieve("fake")).owned_by == "specgate"


async def test_completion(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt="def f", max_tokens=20, logprobs=1, seed=1)
    assert answer.choices[0].text == said("def f", 20)
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].logprobs.tokens) == 20
    assert answer.usage.total_tokens == 25
    assert answer.model_dump()["metrics"]["specgate"]["seed"] == 1


async def test_stream_of_a_completion(client: openai.AsyncOpenAI) -> None:
    text, sources = "", []
    async for chunk in await client.completions.create(
        model="fake",
        prompt="def f",
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"gamma": 3, "gate": "none", "return_sources": True},
    ):
        for choice in chunk.choices:
            text += choice.text
            sources += choice.model_dump()["sources"]
    assert text == said("def f", 40)
    assert len(sources) == chunk.usage.completion_tokens == 40
    assert chunk.model_dump()["metrics"]["specgate"]["gate"] == "none"


async def test_stream_of_a_chat(client: openai.AsyncOpenAI) -> None:
    role, text, finish_reason = None, "", None
    async for chunk in await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=40, stream=True
    ):
        delta = chunk.choices[0].delta
        role, text, finish_reason = role or delta.role, text + (delta.content or ""), chunk.choices[0].finish_reason
    assert (role, finish_reason) == ("assistant", "length")
    assert text == said(f"{TURN}user:Hi{TURN}assistant:", 40)


async def test_chat_helper_that_puts_a_stream_together(client: openai.AsyncOpenAI) -> None:
    text = said(f"{TURN}user:Hi{TURN}assistant:", 10)
    async with client.chat.completions.stream(
        model="fake", messages=[{"role": "user", "content": "Hi"}], stop=text[6], logprobs=True, top_logprobs=1
    ) as stream:
        whole = await stream.get_final_completion()
    assert whole.choices[0].message.content == text[: text.index(text[6])]
    assert len(whole.choices[0].logprobs.content) == text.index(text[6]) + 1


async def test_an_answer_can_be_sent_back(client: openai.AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    first = await client.chat.completions.create(model="fake", messages=messages, max_tokens=5)
    messages += [first.choices[0].message.model_dump(), {"role": "user", "content": "So?"}]
    second = await client.chat.completions.create(model="fake", messages=messages, max_tokens=5)
    answer = first.choices[0].message.content
    assert second.choices[0].message.content == said(
        f"{TURN}user:Hi{TURN}assistant:{answer}{TURN}user:So?{TURN}assistant:", 5
    )


async def test_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as invalid:
        await client.completions.create(model="fake", prompt="a", n=2)
    assert (invalid.value.param, invalid.value.code) == ("n", "unsupported_value")
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="gpt-4", prompt="a")


async def test_the_bundled_pair() -> None:
    """Over HTTP it says what the facade says."""
    prompt = HELD_OUT_PROMPTS[0]
    with running("drafter", PAIR / "draft") as drafter, running("verifier", PAIR / "target") as verifier:
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
                whole = await client.completions.create(
                    model="pair",
                    prompt=prompt,
                    temperature=0,
                    max_tokens=8,
                    logprobs=2,
                    extra_body={"ignore_eos": True},
                )
                assert [len(top) in (2, 3) for top in whole.choices[0].logprobs.top_logprobs or ()] == [True] * 8
                with pytest.raises(openai.BadRequestError, match="chat template"):
                    await client.chat.completions.create(model="pair", messages=[{"role": "user", "content": "Hi"}])
