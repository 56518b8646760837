"""With a real model: ``orchestrator serve``, its chat template, and OpenAI's own client."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from orchestrator.local.pair_settings import PairModels
from specgate_lab.served_child import MODEL_NAME, served, settings_for
from tests.real.chats import CHATS
from tests.real.pair import DRAFT, TARGET, generated, tokenizer

pytestmark = [pytest.mark.real, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

MESSAGES: Any = CHATS["origin"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(folders: None) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client of a child that serves the pair on a Ray of its own."""
    pytest.importorskip("ray")
    async with (
        served(settings_for(PairModels(str(TARGET), str(DRAFT)))) as doors,
        openai.AsyncOpenAI(base_url=f"http://{doors.http}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: openai.AsyncOpenAI, messages: Any = MESSAGES, most: int = 64, **others: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL_NAME, messages=messages, temperature=0.0, max_completion_tokens=most, **others
    )


def expected() -> tuple[str, int, int]:
    """Return ``generate``'s answer, and how many tokens were asked and answered, the last of an answer included."""
    prompt_ids = tokenizer().encode_chat(MESSAGES)
    answer = generated(prompt_ids)
    return tokenizer().decode(answer), len(prompt_ids), len(answer)


async def test_a_chat(client: openai.AsyncOpenAI) -> None:
    answer = await ask(client)
    text, prompt_tokens, completion_tokens = expected()
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", text, "stop")
    assert "Taipei" in text
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, completion_tokens)
    assert answer.usage.total_tokens == prompt_tokens + completion_tokens


async def test_a_stream_of_a_chat(client: openai.AsyncOpenAI) -> None:
    content, finish_reasons, usage = "", [], None
    settings = {"stream_options": {"include_usage": True}, "extra_body": {"gamma": 4, "gate": "none"}}
    async for chunk in await ask(client, stream=True, **settings):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish_reasons += [choice.finish_reason] if choice.finish_reason else []
    text, prompt_tokens, completion_tokens = expected()
    assert (content, finish_reasons) == (text, ["stop"])
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt_tokens, completion_tokens)


async def test_a_chat_that_reaches_its_limit(client: openai.AsyncOpenAI) -> None:
    answer = await ask(client, CHATS["turns"], 16)
    prompt_ids = tokenizer().encode_chat(CHATS["turns"])
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == tokenizer().decode(generated(prompt_ids, 16))
    assert answer.usage.completion_tokens == 16
