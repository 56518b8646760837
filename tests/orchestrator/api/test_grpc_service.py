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

from orchestrator.api.choices import seed_of_choice
from orchestrator.api.failures import FAILED_HERE
from orchestrator.api.grpc.service import SERVICE, GrpcApi
from orchestrator.api.settings.listen import Listen, TlsSettings
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from specgate.errors import (
    InternalError,
    InvalidArgument,
    NonFiniteLogits,
    ResourceExhausted,
    ServiceUnavailable,
    SpecgateError,
    TooManySessions,
)
from specgate.rpc.channel import open_channel
from specgate.rpc.status import from_rpc_error
from specgate.rpc.tls import ClientTlsFiles
from specgate.types import SessionSpec
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import generation_service_pb2_grpc, types_pb2
from tests.orchestrator.api.http_serving import TOKENIZER, TURN, Buggy, Telling, ascii_tokenizer
from tests.orchestrator.api.queues import (
    Hanging,
    Room,
    dying_after,
    eventually,
    expected,
    occupied,
    open_api,
    open_room,
)
from tests.specgate.rpc.certificates import Certificates
from tests.support.fakes import FakeVerifier

PROMPT = (5, 17, 3)


def asked(prompt: tuple[int, ...] = PROMPT, **params: Any) -> dict[str, Any]:
    """The fields of both kinds of request."""
    params = {"max_tokens": 40, "seed": 7, **params}
    return {"token_ids": pb.TokenIds(ids=prompt), "params": pb.GenerationParams(**params)}


class Client:
    """A stub of the door."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = generation_service_pb2_grpc.GenerationServiceStub(channel)

    def stream(self, *, timeout: float | None = None, **fields: Any) -> Any:
        return self._stub.GenerateStream(pb.GenerateStreamRequest(**asked(**fields)), timeout=timeout)

    def whole(self, *, timeout: float | None = None, **fields: Any) -> Any:
        return self.ask(timeout, **asked(**fields))

    def ask(self, timeout: float | None = None, **fields: Any) -> Any:
        return self._stub.Generate(pb.GenerateRequest(**fields), timeout=timeout)


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


async def test_a_stream_and_a_whole_answer_say_the_same() -> None:
    async with entered() as (room, _, client):
        # A gate that learns goes another way the second time.
        responses = await all_of(client.stream(gate=pb.GATE_NONE, gamma=4))
        assert tokens(responses) == expected(GenerationRequest(PROMPT, max_tokens=40))
        assert all(len(response.sources) == len(response.token_ids) > 0 for response in responses)
        sources = [source for response in responses for source in response.sources]
        assert set(sources) >= {pb.TOKEN_SOURCE_ACCEPTED, pb.TOKEN_SOURCE_RECOVERED, pb.TOKEN_SOURCE_BONUS}
        assert not any(response.HasField("stats") for response in responses[:-1])
        assert responses[-1].finish_reason == types_pb2.FINISH_REASON_LENGTH
        stats = responses[-1].stats
        assert (stats.prompt_tokens, stats.completion_tokens, stats.seed) == (3, 40, 7)
        assert stats.target_forwards == len(responses)
        assert 0 < stats.accepted_tokens <= stats.drafted_tokens
        whole = await client.whole(gate=pb.GATE_NONE, gamma=4)
        assert (tuple(whole.token_ids), list(whole.sources)) == (tokens(responses), sources)
        assert whole.finish_reason == types_pb2.FINISH_REASON_LENGTH
        assert whole.stats.completion_tokens == 40
        await room.freed()


async def test_choices_with_seeds_of_their_own_and_what_the_prompt_is_worth() -> None:
    async with entered(Telling) as (room, _, client):
        text = expected(GenerationRequest(PROMPT, max_tokens=40))
        responses = await all_of(client.stream(n=3, prompt_logprobs=1, min_tokens=4))
        for index in range(3):
            own = [response for response in responses if response.index == index]
            assert tokens(own) == text
            assert [response.HasField("stats") for response in own] == [False] * (len(own) - 1) + [True]
            assert own[-1].stats.seed == seed_of_choice(7, index)
            assert [one.logprob for one in own[0].prompt_logprobs] == [-0.5, -1.5]
        whole = await client.whole(n=3, prompt_logprobs=0)
        assert len(whole.others) == 2
        for answer in (whole, *whole.others):
            assert tuple(answer.token_ids) == text
            assert len(answer.prompt_logprobs) == 2
        assert {session.spec.min_tokens for session in room.verifier.sessions} == {0, 4}
        for n in (0, 17):
            error = await error_of(client.whole(n=n))
            assert isinstance(error, InvalidArgument)
            assert error.field == "n"
        await room.freed()
        assert room.request_queue.num_inside == 0


async def test_text_in_text_out(byte_level: TextTokenizer) -> None:
    async with entered(tokenizer=byte_level) as (_, _, client):
        answer = await client.ask(text="the fox", params=pb.GenerationParams(max_tokens=30))
        prompt = byte_level.encode("the fox")
        assert answer.text == byte_level.decode(expected(GenerationRequest(prompt, max_tokens=30)))
        assert answer.stats.prompt_tokens == len(prompt)


async def test_a_request_that_says_nothing_gets_the_defaults() -> None:
    async with entered() as (room, _, client):
        answer = await client.ask(token_ids=pb.TokenIds(ids=PROMPT))
        spec = room.verifier.sessions[0].spec
        assert (spec.sampling.temperature, spec.max_tokens, spec.stop_token_ids) == (1.0, 128, {0})
        assert spec.seed == answer.stats.seed > 0
        assert spec.logprobs is None
        near_the_end = await client.ask(token_ids=pb.TokenIds(ids=[1] * 500))
        assert near_the_end.stats.completion_tokens == 12


HOT = [types_pb2.SamplingParams(temperature=temperature) for temperature in (-1, float("inf"))]


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("max_tokens", [{"max_tokens": 0}, {"max_tokens": 5000}]),
        ("gamma", [{"gamma": 65}]),
        ("gate", [{"gate": 9}]),
        ("gate_threshold", [{"gate_threshold": 1.5}, {"gate_threshold": float("nan")}]),
        ("verification", [{"verification": 9}]),
        ("logprobs", [{"logprobs": 21}]),
        ("stop", [{"stop": [""]}, {"stop": ["this target has no tokenizer"]}]),
        ("stop (length)", [{"stop": ["a"] * 17}]),
        ("stop (characters)", [{"stop": ["a" * 257]}]),
        ("stop_token_ids", [{"stop_token_ids": [97]}]),
        ("stop_token_ids (length)", [{"stop_token_ids": [1] * 257}]),
        ("temperature", [{"sampling": hot} for hot in HOT]),
        ("logit_bias", [{"sampling": types_pb2.SamplingParams(logit_bias={97: 1})}]),
        ("token_ids", [{"prompt": (97,)}]),
        ("token_ids (length)", [{"prompt": ()}, {"prompt": (1,) * 512}]),
    ],
)
async def test_bad_input_is_named(field: str, params: list[dict[str, Any]]) -> None:
    async with entered() as (room, _, client):
        for bad in params:
            for call in (client.whole(**bad), all_of(client.stream(**bad))):
                error = await error_of(call)
                assert isinstance(error, InvalidArgument)
                assert error.field == field
        assert room.verifier.sessions == []
        assert room.request_queue.num_inside == 0


async def test_prompts_that_are_none() -> None:
    async with entered() as (room, _, client):
        for prompt, field in (({}, "prompt"), ({"text": "the fox"}, "prompt"), ({"text": ""}, "text")):
            error = await error_of(client.ask(**prompt))
            assert isinstance(error, InvalidArgument)
            assert error.field == field
        assert room.verifier.sessions == []


def chat(*turns: tuple[str, str], **flags: bool) -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role=role, content=content) for role, content in turns], **flags)


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        (chat(("developer", "Be"), ("user", "Hi")), f"{TURN}system:Be{TURN}user:Hi{TURN}assistant:"),
        (chat(("user", "Hi"), ("assistant", "Yo"), continue_final_message=True), f"{TURN}user:Hi{TURN}assistant:Yo"),
    ],
)
async def test_a_chat_is_read_in_the_words_of_the_targets_template(asked: pb.Chat, read: str) -> None:
    async with entered(tokenizer=TOKENIZER) as (_, _, client):
        answer = await client.ask(chat=asked, params=pb.GenerationParams(max_tokens=30))
    prompt = TOKENIZER.encode(read)
    assert tuple(answer.token_ids) == expected(GenerationRequest(prompt, max_tokens=30))
    assert answer.stats.prompt_tokens == len(prompt)


HELLO = ("user", "Hi")


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("chat.messages (length)", chat()),
        ("chat.messages (length)", chat(*[HELLO] * 4097)),
        ("chat.messages[1].role", chat(HELLO, ("robot", "Hi"))),
        ("chat.messages[0].name (length)", pb.Chat(messages=[pb.ChatMessage(role="user", name="a" * 513)])),
        ("chat.messages", chat(("assistant", "I speak first"))),
        ("chat (tokens) (length)", chat(("user", "a" * 600))),
    ],
)
async def test_a_chat_that_is_none(field: str, asked: pb.Chat) -> None:
    async with entered(tokenizer=TOKENIZER) as (room, _, client):
        error = await error_of(client.ask(chat=asked))
        assert isinstance(error, InvalidArgument)
        assert error.field == field
        assert room.verifier.sessions == []


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


async def test_full_says_when_to_come_back() -> None:
    async with (
        entered(max_running=1, max_queued=0) as (room, _, client),
        occupied(room),
    ):
        # No work is put into a request that would be refused anyway.
        for call in (client.whole(), client.ask()):
            error = await error_of(call)
            assert isinstance(error, TooManySessions)
            assert error.retry_after_s == TooManySessions.retry_after_s


async def test_a_client_that_cancels_frees_everything(caplog: pytest.LogCaptureFixture) -> None:
    async with entered(partial(FakeVerifier, delay_s=0.001)) as (room, _, client):
        for num_read in range(5):
            call = client.stream(max_tokens=400)
            for _ in range(num_read):
                await call.read()
            call.cancel()
        unary = client.whole(max_tokens=400)
        await eventually(lambda: room.verifier.num_open > 0)
        unary.cancel()
        await eventually(lambda: room.request_queue.num_inside == 0)
        await room.freed()
    assert caplog.records == []


async def test_a_deadline_frees_everything() -> None:
    async with entered(Hanging) as (room, _, client):
        for call in (client.whole(timeout=0.3), all_of(client.stream(timeout=0.3))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: room.request_queue.num_inside == 0)
        await room.freed()


async def test_an_error_after_tokens_says_after_which() -> None:
    async with entered(dying_after(3)) as (room, _, client):
        responses: list[Any] = []
        error = await error_of(all_of(client.stream(gate=pb.GATE_NONE, gamma=4), responses))
        assert isinstance(error, ServiceUnavailable)
        assert f"the last token sent has index {len(tokens(responses)) - 1}" in str(error)
        assert error.retry_after_s is not None
        assert len(responses) == 3
        await room.freed()


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


async def test_health_is_told() -> None:
    async with open_api() as (_, door), open_channel(door.endpoint) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


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


async def test_tls(certificates: Certificates) -> None:
    certificate, key = certificates.issue("server")
    listen = Listen(tls=TlsSettings(certificate=certificate, key=key))
    async with entered(listen=listen) as (_, door, plain):
        async with open_channel(door.endpoint, ClientTlsFiles(certificates.ca)) as channel:
            assert (await Client(channel).whole()).stats.completion_tokens == 40
        assert isinstance(await error_of(plain.whole()), ServiceUnavailable)
