"""The gRPC door over real sockets, with the fake model behind the services."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from orchestrator.api.failures import FAILED_HERE
from orchestrator.api.grpc.service import SERVICE, GrpcApi
from orchestrator.api.settings.listen import Listen, TlsSettings
from orchestrator.decode.request import GenerationRequest
from specgate.errors import (
    InternalError,
    InvalidArgument,
    NonFiniteLogits,
    ResourceExhausted,
    ServiceUnavailable,
    SpecgateError,
)
from specgate.rpc.channel import open_channel
from specgate.rpc.status import from_rpc_error
from specgate.rpc.tls import ClientTlsFiles
from specgate.types import SessionSpec
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import generation_service_pb2_grpc, types_pb2
from tests.orchestrator.api.http_serving import TOKENIZER, Buggy, ascii_tokenizer
from tests.orchestrator.api.queues import Room, expected, open_api, open_room
from tests.specgate.rpc.certificates import Certificates
from tests.support.fakes import FakeVerifier
from tests.support.patience import eventually

PROMPT = (5, 17, 3)


def asked(prompt: tuple[int, ...] = PROMPT, **params: Any) -> dict[str, Any]:
    """The fields of both kinds of request."""
    params = {"max_tokens": 40, "seed": 7, **params}
    return {"token_ids": pb.TokenIds(ids=prompt), "params": pb.GenerationParams(**params)}


class Client:
    """A stub of the door."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = generation_service_pb2_grpc.GenerationServiceStub(channel)

    def stream(self, **fields: Any) -> Any:
        return self._stub.GenerateStream(pb.GenerateStreamRequest(**asked(**fields)))

    def whole(self, **fields: Any) -> Any:
        return self.ask(**asked(**fields))

    def ask(self, **fields: Any) -> Any:
        return self._stub.Generate(pb.GenerateRequest(**fields))


@asynccontextmanager
async def entered(*args: Any, **room: Any) -> AsyncIterator[tuple[Room, GrpcApi, Client]]:
    """A room with a door, and a client that goes in by it."""
    async with open_api(*args, **room) as (opened, door), open_channel(door.endpoint) as channel:
        yield opened, door, Client(channel)


async def error_of(call: Awaitable[Any]) -> SpecgateError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def all_of(call: Any, responses: list[Any] | None = None) -> list[Any]:
    """Read the stream into ``responses`` and return them."""
    responses = [] if responses is None else responses
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


def tokens(responses: list[Any]) -> tuple[int, ...]:
    return tuple(token_id for response in responses for token_id in response.token_ids)


HOT = [types_pb2.SamplingParams(temperature=temperature) for temperature in (-1, float("inf"))]
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 0}),
    ("max_tokens", {"max_tokens": 5000}),
    ("gate", {"gate": 9}),
    ("gate_threshold", {"gate_threshold": float("nan")}),
    ("draft_threshold", {"draft_threshold": float("nan")}),
    ("verification", {"verification": 9}),
    ("logprobs", {"logprobs": 21}),
    ("stop", {"stop": [""]}),
    ("stop (length)", {"stop": ["a"] * 17}),
    ("stop (characters)", {"stop": ["a" * 257]}),
    ("stop_token_ids", {"stop_token_ids": [97]}),
    ("stop_token_ids (length)", {"stop_token_ids": [1] * 257}),
    *(("temperature", {"sampling": hot}) for hot in HOT),
    ("logit_bias", {"sampling": types_pb2.SamplingParams(logit_bias={97: 1})}),
    ("token_ids (length)", {"prompt": (1,) * 512}),
]


def chat(*turns: tuple[str, str]) -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role=role, content=content) for role, content in turns])


HELLO = ("user", "Hi")
NO_PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {}),
    ("chat.messages (length)", {"chat": chat()}),
    ("chat.messages (length)", {"chat": chat(*[HELLO] * 4097)}),
    ("chat.messages[1].role", {"chat": chat(HELLO, ("robot", "Hi"))}),
    ("chat.messages[0].name (length)", {"chat": pb.Chat(messages=[pb.ChatMessage(role="user", name="a" * 513)])}),
    ("chat.messages", {"chat": chat(("assistant", "I speak first"))}),
    ("chat (tokens) (length)", {"chat": chat(("user", "a" * 600))}),
]


async def test_bad_input_is_named() -> None:
    async with entered(tokenizer=TOKENIZER) as (room, _, client):
        calls = [(field, one) for field, bad in WRONG for one in (client.whole(**bad), all_of(client.stream(**bad)))]
        for field, call in [*calls, *((field, client.ask(**bad)) for field, bad in NO_PROMPTS)]:
            error = await error_of(call)
            assert isinstance(error, InvalidArgument)
            assert error.field == field
        assert room.verifier.sessions == []
        assert room.request_queue.num_inside == 0


async def test_what_a_target_without_a_tokenizer_cannot_read() -> None:
    async with entered() as (_, _, client):
        for call, field in ((client.whole(stop=["a"]), "stop"), (client.ask(text="the fox"), "prompt")):
            error = await error_of(call)
            assert isinstance(error, InvalidArgument)
            assert error.field == field


async def test_a_call_of_more_bytes_than_a_context_needs_is_refused_unread() -> None:
    async with entered(tokenizer=TOKENIZER) as (room, _, client):
        assert isinstance(await error_of(client.ask(text="a" * 1_060_000)), ResourceExhausted)
        assert isinstance(await error_of(client.ask(text="a" * 1_050_000)), InvalidArgument)
        assert room.verifier.sessions == []


async def test_a_target_that_was_not_taught_to_chat() -> None:
    async with entered(tokenizer=ascii_tokenizer(chat_template=None)) as (_, _, client):
        error = await error_of(client.ask(chat=chat(HELLO)))
    assert isinstance(error, InvalidArgument)
    assert str(error).startswith("chat.messages: the served model has no chat template")


async def test_a_bug_after_tokens_tells_no_more_than_that(caplog: pytest.LogCaptureFixture) -> None:
    async with entered(tokenizer=ascii_tokenizer(kind=Buggy)) as (room, _, client):
        error = await error_of(all_of(client.stream()))
        assert isinstance(error, InternalError)
        assert re.fullmatch(r"internal error, correlation id \w+; the last token sent has index \d+", str(error))
        await room.freed()
    assert "a secret" in caplog.text


async def test_a_model_that_fails_is_told_by_its_reason_alone(caplog: pytest.LogCaptureFixture) -> None:
    def failing(spec: SessionSpec) -> FakeVerifier:
        raise NonFiniteLogits("row 3 of the secret")

    async with entered(failing) as (_, _, client):
        error = await error_of(all_of(client.stream()))
    assert isinstance(error, NonFiniteLogits)
    assert str(error) == FAILED_HERE
    assert "row 3 of the secret" in caplog.text


async def test_a_client_that_reads_nothing_is_cut() -> None:
    # All of it fits into the request queue's buffer, so that nobody but the door can find it out.
    async with open_api(output_buffer=1000, slow_reader_s=0.2) as (room, door):
        # Windows so small that a few deltas fill them.
        options = [("grpc.http2.lookahead_bytes", 64), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(door.endpoint, options) as channel:
            call = Client(channel).stream(max_tokens=450, gate=pb.GATE_NONE, gamma=1, ignore_eos=True)
            await call.read()
            await eventually(lambda: room.request_queue.num_inside == 0)
            await room.freed()
            error = await error_of(all_of(call))
            assert isinstance(error, ServiceUnavailable)
            assert "the reader fell 0.2 s behind a pace of 5 tokens/s" in str(error)


async def test_a_client_that_reads_nothing_holds_up_nobody() -> None:
    async with open_api(output_buffer=1000) as (room, door):
        options = [("grpc.http2.lookahead_bytes", 64), ("grpc.http2.bdp_probe", 0)]
        async with (
            grpc.aio.insecure_channel(door.endpoint, options) as unread,
            open_channel(door.endpoint) as channel,
        ):
            call = Client(unread).stream(max_tokens=450, gate=pb.GATE_NONE, gamma=1, ignore_eos=True)
            await call.read()
            assert (await Client(channel).whole()).stats.completion_tokens == 40
            assert room.request_queue.num_inside == 1
            call.cancel()
        await room.freed()


async def test_draining_lets_the_running_end_and_refuses_others() -> None:
    async with entered(partial(FakeVerifier, delay_s=0.005), drain_s=60.0) as (_, door, client):
        call = client.stream()
        responses = [await call.read()]
        draining = asyncio.create_task(door.drain())
        await asyncio.sleep(0)
        error = await error_of(client.whole())
        assert isinstance(error, ServiceUnavailable)
        assert "draining" in str(error)
        assert tokens(await all_of(call, responses)) == expected(GenerationRequest(PROMPT, max_tokens=40))
        await draining


async def test_two_doors_share_a_port_on_purpose_alone() -> None:
    async with open_room() as first, open_room() as second, AsyncExitStack() as stack:
        port = 0
        for room in (first, second):
            door = GrpcApi(room.request_queue, Listen(port=port), reuse_port=True, drain_s=0.0)
            await door.start()
            stack.push_async_callback(door.drain)
            port = int(door.endpoint.rpartition(":")[2])
        # The kernel deals out connections by a hash of their addresses.
        while not (first.verifier.sessions and second.verifier.sessions):
            async with open_channel(door.endpoint) as channel:
                await Client(channel).whole(max_tokens=1)
        with pytest.raises(InvalidArgument, match="in use"):
            await GrpcApi(first.request_queue, Listen(port=port)).start()


async def test_health_is_told() -> None:
    async with open_api() as (_, door), open_channel(door.endpoint) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_tls(certificates: Certificates) -> None:
    certificate, key = certificates.issue("server")
    listen = Listen(tls=TlsSettings(certificate=certificate, key=key))
    async with entered(listen=listen) as (_, door, plain):
        async with open_channel(door.endpoint, ClientTlsFiles(certificates.ca)) as channel:
            assert (await Client(channel).whole()).stats.completion_tokens == 40
        assert isinstance(await error_of(plain.whole()), ServiceUnavailable)
