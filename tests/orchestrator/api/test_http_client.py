"""The client of ``/v1/completions`` against the real door, over the fake model."""

import asyncio
from collections.abc import Iterator

import pytest

from orchestrator.bench.clients.http_client import stream_completion
from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.errors import ServiceUnavailable, SpecgateError
from specgate.types import FinishReason, SamplingParams
from tests.orchestrator.api.http_serving import Site, ascii_tokenizer, open_site
from tests.orchestrator.api.queues import dying_after, expected

TEXT = "Hello"
REQUEST = GenerationRequest(
    (), SamplingParams(temperature=0.0), max_tokens=30, seed=7, stop_token_ids=frozenset({90}), gamma=3, gate=Gate.NONE
)


def stream(site: Site, model: str = "fake") -> Iterator[Delta]:
    return stream_completion(site.url.removeprefix("http://"), model, REQUEST, TEXT)


async def test_deltas_add_up_to_what_the_target_says() -> None:
    tokenizer = ascii_tokenizer()
    async with open_site() as site:
        deltas = await asyncio.to_thread(lambda: list(stream(site)))
    token_ids = tuple(token_id for delta in deltas for token_id in delta.token_ids)
    whole = GenerationRequest(tokenizer.encode(TEXT), REQUEST.sampling, 30, stop_token_ids=frozenset({90}))
    assert token_ids == expected(whole)
    assert all(len(delta.sources) == len(delta.token_ids) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == tokenizer.decode(token_ids)
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_a_refusal_is_told_in_the_doors_words() -> None:
    async with open_site() as site:
        with pytest.raises(SpecgateError, match="'another' is not served here"):
            await asyncio.to_thread(lambda: list(stream(site, "another")))


async def test_a_break_in_mid_stream_is_told() -> None:
    async with open_site(make_verifier=dying_after(2)) as site:
        with pytest.raises(SpecgateError, match="the fake died"):
            await asyncio.to_thread(lambda: list(stream(site)))


def test_nobody_there() -> None:
    with pytest.raises(ServiceUnavailable, match=r"127\.0\.0\.1:1"):
        list(stream_completion("127.0.0.1:1", "fake", REQUEST, TEXT))
