"""What is cached of a prompt is told at both doors and in the metrics, as the verifier tells it."""

from collections.abc import Callable
from itertools import count
from typing import Any

import openai
import pytest

from specgate.client import Client, Params
from specgate.types import SessionSpec
from tests.orchestrator.api.http_serving import CHAT, COMPLETIONS, MESSAGES, PROMPT, open_site, usage
from tests.orchestrator.api.queues import open_api
from tests.orchestrator.api.test_metrics import metrics
from tests.support.fakes import FakeVerifier

INCLUDED = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def telling(*cached_tokens: int) -> Callable[[SessionSpec], FakeVerifier]:
    """Return what makes verifiers, of which the first ones tell these numbers, and the others that all is cached."""
    numbers = count()

    def make(spec: SessionSpec) -> FakeVerifier:
        number = next(numbers)
        told = cached_tokens[number] if number < len(cached_tokens) else len(spec.prompt_token_ids)
        return FakeVerifier(spec, cached_tokens=told)

    return make


@pytest.mark.parametrize(
    ("path", "prompt"),
    [(COMPLETIONS, {"prompt": PROMPT}), (CHAT, {"messages": MESSAGES})],
    ids=["completions", "chat"],
)
async def test_of_openais_answers(path: str, prompt: dict[str, Any]) -> None:
    async with open_site(telling(2, 1)) as site:
        whole = await site.post(path, max_tokens=8, **prompt)
        *chunks, _ = await site.stream(path, max_tokens=8, **prompt, **INCLUDED)
    assert whole["usage"] == usage(whole["usage"]["prompt_tokens"], 8, 2)
    details = [chunk["usage"]["prompt_tokens_details"] for chunk in chunks]
    assert len(details) > 2
    assert details == [{"cached_tokens": 1}] * len(details)


async def test_of_several_choices_it_is_that_of_each_prompts_first() -> None:
    async with open_site(telling(2, 3, 1), max_running=1) as site:
        answer = await site.post(COMPLETIONS, prompt=[PROMPT, [7, 7]], n=2, max_tokens=5)
        assert answer["usage"] == usage(5, 20, 3)
    async with open_site(telling(2, 3, 1), max_running=1) as site:
        *_, last, _ = await site.stream(COMPLETIONS, prompt=[PROMPT, [7, 7]], n=2, max_tokens=5, **INCLUDED)
        assert last["usage"] == usage(5, 20, 3)


async def test_of_responses() -> None:
    async with (
        open_site(telling(2, 1)) as site,
        openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client,
    ):
        whole = await client.responses.create(model="fake", input="Hi", max_output_tokens=8)
        async with client.responses.stream(model="fake", input="Hi", max_output_tokens=8) as stream:
            *_, last = [event async for event in stream]
    assert whole.usage.input_tokens_details.cached_tokens == 2
    assert last.response.usage.input_tokens_details.cached_tokens == 1


async def test_of_the_grpc_api_and_its_client() -> None:
    async with open_api(telling(2, 1)) as (_, door), Client(door.endpoint) as client:
        answer = await client.generate(PROMPT, Params(max_tokens=8))
        deltas = [delta async for delta in client.stream(PROMPT, Params(max_tokens=8))]
    for one, cached_tokens in ((answer, 2), (deltas[-1], 1)):
        assert one.stats is not None
        assert one.stats.cached_tokens == cached_tokens


async def test_of_all_requests_together() -> None:
    async with open_site(telling(2, 0, 1)) as site:
        for _ in range(3):
            await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=8)
        found = await metrics(site.client)
    assert found["prompt_tokens_total"] == 3 * len(PROMPT)
    assert found["prompt_tokens_cached_total"] == 3
