"""The clients of both APIs against the real APIs, over the fake model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from orchestrator.api.turns import OUT_OF_REACH
from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument, ServiceUnavailable, SpecgateError
from specgate.types import FinishReason, SamplingParams, Verification
from specgate_lab.clients import GrpcClient, stream_completion
from tests.orchestrator.api.http_serving import TOKENIZER, Site, open_site
from tests.orchestrator.api.queues import Room, dying_after, expected, open_api

REQUEST = GenerationRequest(
    (5, 17, 3), SamplingParams(temperature=0.0), 30, 7, stop_token_ids=frozenset({90}), gamma=3, gate=Gate.NONE,
    verification=Verification.REJECTION,
)  # fmt: skip


@asynccontextmanager
async def grpc_client(**room: object) -> AsyncIterator[tuple[Room, GrpcClient]]:
    async with open_api(**room) as (opened, door), GrpcClient(door.endpoint) as client:
        yield opened, client


async def http_deltas(site: Site, model: str = "fake") -> list[Delta]:
    stream = stream_completion(site.url.removeprefix("http://"), model, REQUEST, "Hello")
    return await asyncio.to_thread(lambda: list(stream))


async def test_deltas_over_grpc_are_those_of_the_decode_loop() -> None:
    async with grpc_client() as (room, client):
        deltas = [delta async for delta in client.stream(REQUEST)]
        async with room.request_queue.admitted(REQUEST) as running:
            # Records do not cross the wire.
            assert deltas == [replace(delta, records=()) async for delta in running.deltas()]
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert tuple(token_id for delta in deltas for token_id in delta.token_ids) == expected(REQUEST)
    assert (client.stats.seed, client.stats.completion_tokens) == (7, 30)
    assert (client.stats.drafted, client.stats.accepted) == (running.stats.drafted, running.stats.accepted)


async def test_deltas_over_http_add_up_to_what_the_target_says() -> None:
    async with open_site() as site:
        deltas = await http_deltas(site)
    token_ids = tuple(token_id for delta in deltas for token_id in delta.token_ids)
    assert token_ids == expected(replace(REQUEST, prompt_token_ids=TOKENIZER.encode("Hello")))
    assert all(len(delta.sources) == len(delta.token_ids) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == TOKENIZER.decode(token_ids)
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_a_refusal_is_told_in_the_doors_words() -> None:
    async with grpc_client() as (_, client):
        with pytest.raises(InvalidArgument, match="tokenizer"):
            await anext(client.stream(REQUEST, text="no tokenizer is here"))
    async with open_site() as site:
        with pytest.raises(SpecgateError, match="'another' is not served here"):
            await http_deltas(site, "another")


async def test_a_break_in_mid_stream_is_told_after_the_deltas_before_it() -> None:
    async with grpc_client(make_verifier=dying_after(2)) as (_, client), aclosing(client.stream(REQUEST)) as deltas:
        assert [(await anext(deltas)).finish_reason for _ in range(2)] == [None, None]
        with pytest.raises(ServiceUnavailable):
            await anext(deltas)
    async with open_site(make_verifier=dying_after(2)) as site:
        with pytest.raises(SpecgateError, match=OUT_OF_REACH):
            await http_deltas(site)


def test_nobody_there() -> None:
    with pytest.raises(ServiceUnavailable, match=r"127\.0\.0\.1:1"):
        list(stream_completion("127.0.0.1:1", "fake", REQUEST, "Hello"))
