"""The client of GenerationService against the real door, over the fake model."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from orchestrator.api.grpc.service import GrpcDoor
from orchestrator.api.settings.listen import Listen
from orchestrator.bench.clients.grpc_client import GrpcClient
from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.types import FinishReason, SamplingParams, Verification
from tests.orchestrator.api.queues import Room, dying_after, expected, open_room

REQUEST = GenerationRequest(
    (5, 17, 3),
    SamplingParams(temperature=0.0),
    max_tokens=30,
    seed=7,
    gamma=3,
    gate=Gate.NONE,
    verification=Verification.REJECTION,
)


@asynccontextmanager
async def open_door(**room: object) -> AsyncIterator[tuple[Room, GrpcClient]]:
    async with open_room(**room) as opened:
        door = GrpcDoor(opened.request_queue, Listen(), reuse_port=False, drain_s=1.0)
        await door.start()
        try:
            async with GrpcClient(door.endpoint) as client:
                yield opened, client
        finally:
            await door.drain()


async def test_deltas_are_those_of_the_decode_loop() -> None:
    async with open_door() as (room, client):
        deltas = [delta async for delta in client.stream(REQUEST)]
        async with room.request_queue.admitted(REQUEST) as running:
            ours = [delta async for delta in running.deltas()]
    assert deltas == ours
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert tuple(token_id for delta in deltas for token_id in delta.token_ids) == expected(REQUEST)
    stats = running.stats
    assert client.stats.seed == 7
    assert (client.stats.drafted, client.stats.accepted) == (stats.drafted, stats.accepted)
    assert client.stats.completion_tokens == 30


async def test_leaving_early_frees_the_sessions() -> None:
    async with open_door() as (room, client):
        async with aclosing(client.stream(REQUEST)) as deltas:
            await anext(deltas)
        await room.freed()


async def test_a_refusal_is_the_servers_own() -> None:
    async with open_door() as (_, client):
        with pytest.raises(InvalidArgument, match="tokenizer"):
            await anext(client.stream(REQUEST, text="no tokenizer is here"))


async def test_a_break_comes_after_the_deltas_before_it() -> None:
    async with open_door(make_verifier=dying_after(2)) as (_, client), aclosing(client.stream(REQUEST)) as deltas:
        assert [(await anext(deltas)).finish_reason for _ in range(2)] == [None, None]
        with pytest.raises(ServiceUnavailable):
            await anext(deltas)
