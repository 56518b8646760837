"""The gRPC door over real sockets, with the fake model behind the services."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from orchestrator.api.grpc.convert import delta_to_pb
from orchestrator.api.grpc.service import SERVICE, GrpcDoor
from orchestrator.api.settings.listen import Listen, TlsSettings
from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InternalError, InvalidArgument, ServiceUnavailable, SpecgateError, TooManySessions
from specgate.rpc.channel import open_channel
from specgate.rpc.status import from_rpc_error
from specgate.rpc.tls import ClientTlsFiles
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import generation_service_pb2_grpc, types_pb2
from tests.orchestrator.api.queues import Room, dying_after, eventually, expected, open_room
from tests.specgate.rpc.certificates import Certificates
from tests.support.fakes import FakeVerifier, Fault

PROMPT = (5, 17, 3)
Hanging = partial(FakeVerifier, faults={2: Fault.HANG})
"""Two verdicts, then none any more."""


def stream_request(prompt: tuple[int, ...] = PROMPT, **params: Any) -> pb.GenerateStreamRequest:
    params = {"max_tokens": 40, "seed": 7, **params}
    return pb.GenerateStreamRequest(token_ids=pb.TokenIds(ids=prompt), params=pb.GenerationParams(**params))


def unary_request(prompt: tuple[int, ...] = PROMPT, **params: Any) -> pb.GenerateRequest:
    params = {"max_tokens": 40, "seed": 7, **params}
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), params=pb.GenerationParams(**params))


@asynccontextmanager
async def open_door(
    *args: Any, drain_s: float = 0.0, listen: Listen | None = None, **limits: Any
) -> AsyncIterator[tuple[Room, GrpcDoor, Any]]:
    """A room with a door, and a stub that goes in by it."""
    async with AsyncExitStack() as stack:
        room = await stack.enter_async_context(open_room(*args, **limits))
        door = GrpcDoor(room.request_queue, listen or Listen(), drain_s=drain_s)
        await door.start()
        stack.push_async_callback(door.drain)
        channel = await stack.enter_async_context(open_channel(door.endpoint))
        yield room, door, stub(channel)


def stub(channel: grpc.aio.Channel) -> Any:
    return generation_service_pb2_grpc.GenerationServiceStub(channel)


async def error_of(call: Awaitable[Any]) -> SpecgateError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def all_of(call: Any) -> list[Any]:
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


async def read_into(tokens: list[int], call: Any) -> None:
    async for response in call:
        tokens += response.token_ids


async def test_stream() -> None:
    async with open_door() as (room, _, client):
        responses = await all_of(client.GenerateStream(stream_request(gate=pb.GATE_NONE, gamma=4)))
        tokens = [token_id for response in responses for token_id in response.token_ids]
        assert tuple(tokens) == expected(GenerationRequest(PROMPT, max_tokens=40))
        assert all(len(response.sources) == len(response.token_ids) > 0 for response in responses)
        sources = {source for response in responses for source in response.sources}
        assert sources >= {pb.TOKEN_SOURCE_ACCEPTED, pb.TOKEN_SOURCE_RECOVERED, pb.TOKEN_SOURCE_BONUS}
        assert [response.HasField("stats") for response in responses[:-1]] == [False] * (len(responses) - 1)
        assert responses[-1].finish_reason == types_pb2.FINISH_REASON_LENGTH
        stats = responses[-1].stats
        assert (stats.prompt_tokens, stats.completion_tokens, stats.seed) == (3, 40, 7)
        assert stats.target_forwards == len(responses)
        assert 0 < stats.accepted_tokens <= stats.drafted_tokens
        await room.freed()


async def test_unary_says_the_same() -> None:
    async with open_door() as (room, _, client):
        # A gate that learns goes another way the second time.
        responses = await all_of(client.GenerateStream(stream_request(gate=pb.GATE_NONE)))
        whole = await client.Generate(unary_request(gate=pb.GATE_NONE))
        assert list(whole.token_ids) == [token_id for response in responses for token_id in response.token_ids]
        assert list(whole.sources) == [source for response in responses for source in response.sources]
        assert whole.finish_reason == responses[-1].finish_reason
        assert whole.stats.completion_tokens == 40
        await room.freed()


async def test_text_in_text_out(byte_level: TextTokenizer) -> None:
    async with open_door(tokenizer=byte_level) as (_, _, client):
        request = pb.GenerateStreamRequest(text="the fox", params=pb.GenerationParams(max_tokens=30, seed=1))
        responses = await all_of(client.GenerateStream(request))
        text = "".join(response.text for response in responses)
        assert text == byte_level.decode([token_id for response in responses for token_id in response.token_ids])
        assert responses[-1].stats.prompt_tokens == len(byte_level.encode("the fox"))
        whole = await client.Generate(pb.GenerateRequest(text="the fox", params=request.params))
        assert whole.text == text


async def test_a_request_that_says_nothing_gets_the_defaults() -> None:
    async with open_door() as (room, _, client):
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=PROMPT))
        answer = await client.Generate(request)
        spec = room.verifier.sessions[0].spec
        assert (spec.sampling.temperature, spec.max_tokens, spec.stop_token_ids) == (1.0, 128, {0})
        assert spec.seed == answer.stats.seed > 0
        assert spec.logprobs is None
        near_the_end = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 500))
        answer = await client.Generate(near_the_end)
        assert answer.stats.completion_tokens == 12


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"gamma": 65}, "gamma"),
        ({"gate": 9}, "gate"),
        ({"gate_threshold": 1.5}, "gate_threshold"),
        ({"gate_threshold": float("nan")}, "gate_threshold"),
        ({"verification": 9}, "verification"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": ["a"] * 17}, "stop (length)"),
        ({"stop": ["a"]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a" * 257]}, "stop (characters)"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids (length)"),
        ({"stop_token_ids": [97]}, "stop_token_ids"),
        ({"sampling": types_pb2.SamplingParams(temperature=-1)}, "temperature"),
        ({"sampling": types_pb2.SamplingParams(temperature=float("inf"))}, "temperature"),
        ({"sampling": types_pb2.SamplingParams(top_p=0)}, "top_p"),
        ({"sampling": types_pb2.SamplingParams(min_p=2)}, "min_p"),
        ({"sampling": types_pb2.SamplingParams(repetition_penalty=0)}, "repetition_penalty"),
        ({"sampling": types_pb2.SamplingParams(logit_bias={97: 1})}, "logit_bias"),
        ({"prompt": ()}, "token_ids (length)"),
        ({"prompt": (1,) * 512}, "token_ids (length)"),
        ({"prompt": (97,)}, "token_ids"),
    ],
)
async def test_bad_input_is_named(params: dict[str, Any], field: str) -> None:
    async with open_door() as (room, _, client):
        for call in (client.Generate(unary_request(**params)), all_of(client.GenerateStream(stream_request(**params)))):
            error = await error_of(call)
            assert isinstance(error, InvalidArgument)
            assert error.field == field
        assert room.verifier.sessions == []
        assert room.request_queue.num_inside == 0


@pytest.mark.parametrize(
    ("request_bytes", "field"),
    [
        (b"", "prompt"),
        (pb.GenerateRequest(text="the fox").SerializeToString(), "prompt"),
        (pb.GenerateRequest(text="").SerializeToString(), "text (length)"),
        (b"\xff\xff", "message"),
    ],
)
async def test_prompts_that_are_none(request_bytes: bytes, field: str) -> None:
    async with open_door() as (room, door, _), open_channel(door.endpoint) as channel:
        error = await error_of(channel.unary_unary(f"/{SERVICE}/Generate")(request_bytes))
        assert isinstance(error, InvalidArgument)
        assert error.field == field
        assert room.verifier.sessions == []


async def test_full_says_when_to_come_back() -> None:
    async with open_door(Hanging, max_running=1, max_queued=0) as (room, _, client):
        call = client.GenerateStream(stream_request())
        await call.read()
        error = await error_of(client.Generate(unary_request()))
        assert isinstance(error, TooManySessions)
        assert error.retry_after_s == TooManySessions.retry_after_s
        # No work is put into a request that would be refused anyway.
        assert isinstance(await error_of(client.Generate(pb.GenerateRequest())), TooManySessions)
        call.cancel()
        await eventually(lambda: room.request_queue.num_inside == 0)


async def test_a_client_that_cancels_frees_everything(caplog: pytest.LogCaptureFixture) -> None:
    async with open_door(partial(FakeVerifier, delay_s=0.001)) as (room, _, client):
        for num_read in range(5):
            call = client.GenerateStream(stream_request(max_tokens=400))
            for _ in range(num_read):
                await call.read()
            call.cancel()
        unary = client.Generate(unary_request(max_tokens=400))
        await eventually(lambda: room.verifier.num_open > 0)
        unary.cancel()
        await eventually(lambda: room.request_queue.num_inside == 0)
        await room.freed()
    assert caplog.records == []


async def test_a_deadline_frees_everything() -> None:
    async with open_door(Hanging) as (room, _, client):
        for call in (
            client.Generate(unary_request(), timeout=0.3),
            all_of(client.GenerateStream(stream_request(), timeout=0.3)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: room.request_queue.num_inside == 0)
        await room.freed()


async def test_an_error_after_tokens_says_after_which() -> None:
    async with open_door(dying_after(3)) as (room, _, client):
        call = client.GenerateStream(stream_request(gate=pb.GATE_NONE, gamma=4))
        tokens: list[int] = []
        error = await error_of(read_into(tokens, call))
        assert isinstance(error, ServiceUnavailable)
        assert f"the last token sent has index {len(tokens) - 1}" in str(error)
        assert error.retry_after_s is not None
        assert len(tokens) >= 3
        await room.freed()


async def test_a_bug_after_tokens_tells_no_more_than_that(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_at_the_end(delta: Delta, stats: GenerationStats) -> pb.GenerateStreamResponse:
        if delta.finish_reason:
            raise ValueError("a secret")
        return delta_to_pb(delta, stats)

    monkeypatch.setattr("orchestrator.api.grpc.service.delta_to_pb", fail_at_the_end)
    async with open_door() as (room, _, client):
        error = await error_of(all_of(client.GenerateStream(stream_request())))
        assert isinstance(error, InternalError)
        assert re.fullmatch(r"internal error, correlation id \w+; the last token sent has index \d+", str(error))
        await room.freed()
    assert "a secret" in caplog.text


async def test_a_client_that_reads_nothing_is_cut() -> None:
    request = stream_request(max_tokens=450, gate=pb.GATE_NONE, gamma=1, ignore_eos=True, stop=[])
    # All of it fits into the desk's buffer, so that nobody but the door can find it out.
    async with open_door(output_buffer=1000, slow_reader_s=0.2) as (room, door, _):
        # Windows so small that a few deltas fill them.
        options = [("grpc.http2.lookahead_bytes", 64), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(door.endpoint, options) as channel:
            call = stub(channel).GenerateStream(request)
            await call.read()
            await eventually(lambda: room.request_queue.num_inside == 0)
            await room.freed()
            error = await error_of(all_of(call))
            assert isinstance(error, ServiceUnavailable)
            assert "nothing was read for 0.2 s" in str(error)


async def test_draining_lets_the_running_end_and_refuses_others() -> None:
    async with open_door(partial(FakeVerifier, delay_s=0.005), drain_s=60.0) as (_, door, client):
        call = client.GenerateStream(stream_request())
        tokens = list((await call.read()).token_ids)
        draining = asyncio.create_task(door.drain())
        await asyncio.sleep(0)
        error = await error_of(client.Generate(unary_request()))
        assert isinstance(error, ServiceUnavailable)
        assert "draining" in str(error)
        tokens += [token_id for response in await all_of(call) for token_id in response.token_ids]
        await draining
        assert tuple(tokens) == expected(GenerationRequest(PROMPT, max_tokens=40))


async def test_a_drain_that_takes_too_long_is_told_to_the_client() -> None:
    async with open_door(Hanging, drain_s=0.05) as (room, door, client):
        call = client.GenerateStream(stream_request())
        await call.read()
        await door.drain()
        assert isinstance(await error_of(all_of(call)), ServiceUnavailable)
        await room.freed()


async def test_health_and_reflection() -> None:
    async with open_door() as (_, door, _), open_channel(door.endpoint) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
        (listed,) = await all_of(reflection.ServerReflectionInfo(iter(requests)))
        assert SERVICE in {service.name for service in listed.list_services_response.service}


async def test_two_doors_on_one_port() -> None:
    async with open_room() as first, open_room() as second, AsyncExitStack() as stack:
        port = 0
        for room in (first, second):
            door = GrpcDoor(room.request_queue, Listen(port=port), reuse_port=True, drain_s=0.0)
            await door.start()
            stack.push_async_callback(door.drain)
            port = int(door.endpoint.rpartition(":")[2])
        # The kernel deals out connections by a hash of their addresses.
        while not (first.verifier.sessions and second.verifier.sessions):
            async with open_channel(door.endpoint) as channel:
                await stub(channel).Generate(unary_request(max_tokens=1))


async def test_a_port_is_shared_on_purpose_alone() -> None:
    async with open_door() as (room, door, _):
        taken = Listen(port=int(door.endpoint.rpartition(":")[2]))
        with pytest.raises(InvalidArgument, match="in use"):
            await GrpcDoor(room.request_queue, taken).start()


async def test_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command")
    certificates = Certificates(tmp_path, openssl)
    certificate, key = certificates.issue("server")
    listen = Listen(tls=TlsSettings(certificate=certificate, key=key))
    async with open_door(listen=listen) as (_, door, plain):
        async with open_channel(door.endpoint, ClientTlsFiles(certificates.ca)) as channel:
            assert (await stub(channel).Generate(unary_request())).stats.completion_tokens == 40
        assert isinstance(await error_of(plain.Generate(unary_request())), ServiceUnavailable)
