"""One id a request: from either door to both services, in all logs and every answer. And what logs do not hold."""

import asyncio
import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from specgate.rpc.channel import open_channel
from specgate.rpc.request_id import KEY
from specgate.types import SessionSpec
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, Buggy, Telling, ascii_tokenizer, open_site
from tests.orchestrator.api.queues import Hanging, open_api
from tests.support.fakes import FakeDrafter, FakeVerifier, Fault
from tests.support.heard import Heard, hearing
from tests.support.patience import eventually

GIVEN = "my-request/7"
BODY = {"model": "fake", "prompt": PROMPT, "max_tokens": 24, "gate": "none"}
MARKER = "MARKER-of-nobody-else"


@pytest.fixture
def heard() -> Iterator[Heard]:
    with hearing() as heard:
        yield heard


def once(fault: Fault, make: Any) -> Any:
    """Make fakes of which the first one fails after two answers."""
    sessions = count()
    return lambda spec: make(spec, faults={2: fault} if next(sessions) == 0 else {})


def sessions_of(heard: Heard) -> list[tuple[str, str]]:
    """Return which services logged a session's end, and under which id."""
    return sorted((line.text.partition(":")[0], line.request_id) for line in heard.starting("Draft: ", "Verify: "))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_id_of_an_http_request_is_in_the_answer_and_at_both_services(stream: bool, heard: Heard) -> None:
    async with open_site() as site:
        response = await site.client.post(COMPLETIONS, json=BODY | {"stream": stream}, headers={KEY: GIVEN})
        assert (response.status_code, response.headers[KEY]) == (200, GIVEN)
        await site.room.freed()
        await eventually(lambda: len(sessions_of(heard)) == 2)
    assert sessions_of(heard) == [("Draft", GIVEN), ("Verify", GIVEN)]
    (line,) = heard.starting("POST /v1/completions: 200 after ")
    assert line.request_id == GIVEN


async def test_another_verifier_and_another_drafter_are_told_the_same_id(heard: Heard) -> None:
    async with open_site(once(Fault.DIE, partial(Telling, delay_s=0.01))) as site:
        site.room.drafter.make = once(Fault.DIE, FakeDrafter)
        body = BODY | {"max_tokens": 300, "gamma": 2}
        await site.client.post(COMPLETIONS, json=body, headers={KEY: GIVEN})
        await site.room.freed()
        await eventually(lambda: len(sessions_of(heard)) == 4)
    assert sessions_of(heard) == [("Draft", GIVEN)] * 2 + [("Verify", GIVEN)] * 2
    lost = heard.starting("lost the verifier at ", "the target goes on without the drafter at ")
    assert [line.request_id for line in lost] == [GIVEN] * 2


async def test_without_a_usable_id_an_http_request_gets_a_new_one() -> None:
    async with open_site() as site:
        answers = [await site.client.get("/v1/models", headers={KEY: given}) for given in ("", "a b", "x" * 129)]
        answers.append(await site.client.get("/v1/models"))
    assert len({answer.headers[KEY] for answer in answers}) == 4
    assert all(re.fullmatch("[0-9a-f]{16}", answer.headers[KEY]) for answer in answers)


async def test_http_errors_have_it_too(heard: Heard) -> None:
    async with open_site(tokenizer=ascii_tokenizer(kind=Buggy)) as site:
        for path, body, status in (
            ("/nowhere", {}, 404),
            (COMPLETIONS, BODY | {"gamma": 99}, 400),
            (COMPLETIONS, BODY, 500),
        ):
            response = await site.client.post(path, json=body, headers={KEY: GIVEN})
            assert (response.status_code, response.headers[KEY]) == (status, GIVEN)
        assert GIVEN in response.json()["error"]["message"]
    (crash,) = heard.starting("unexpected error")
    assert (crash.request_id, crash.is_trace) == (GIVEN, True)


async def test_the_id_of_a_grpc_request_is_in_the_answer_and_at_both_services(heard: Heard) -> None:
    async with open_api(FakeVerifier) as (room, door), open_channel(door.endpoint) as channel:
        stub: Any = GenerationServiceStub(channel)
        params = pb.GenerationParams(max_tokens=24, gate=pb.GATE_NONE)
        request = pb.GenerateStreamRequest(token_ids=pb.TokenIds(ids=PROMPT), params=params)
        call = stub.GenerateStream(request, metadata=((KEY, GIVEN),))
        assert [response async for response in call]
        assert dict(await call.initial_metadata())[KEY] == GIVEN
        await room.freed()
        refused = stub.GenerateStream(pb.GenerateStreamRequest(params=params), metadata=((KEY, GIVEN),))
        with pytest.raises(grpc.aio.AioRpcError):
            await refused.read()
        assert dict(await refused.initial_metadata())[KEY] == GIVEN
        await eventually(lambda: len(sessions_of(heard)) == 2)
    assert sessions_of(heard) == [("Draft", GIVEN), ("Verify", GIVEN)]


async def leave(url: str, sent: bytes, num_read: int = 0) -> None:
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(sent)
    await writer.drain()
    if num_read:
        await reader.readexactly(num_read)
    writer.transport.abort()


def post(body: bytes, length: int | None = None) -> bytes:
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length or len(body)}\r\n\r\n".encode() + body


async def test_a_client_that_leaves_is_one_line_and_no_traceback(heard: Heard) -> None:
    async with open_site(Hanging) as site:
        for _ in range(3):
            await leave(site.url, post(b"{", 100))
        await leave(site.url, post(json.dumps(BODY).encode()))
        await leave(site.url, post(json.dumps(BODY | {"stream": True}).encode()), num_read=20)
        await eventually(lambda: len(heard.starting("POST ")) == 5)
        await site.room.freed()
        assert (await site.client.get("/healthz")).status_code == 200
    assert [line for line in heard.lines if line.is_trace] == []


async def test_logs_hold_no_prompt_no_answer_and_no_key(heard: Heard) -> None:
    def telling(spec: SessionSpec) -> Any:
        return Telling(spec, faults={3: Fault.DIE} if len(spec.output_token_ids) < 3 else {})

    async with open_site(telling) as site:
        for changes in (
            {},
            {"stream": True},
            {"stop": [MARKER] * 99},
            {"top_p": MARKER},
            {MARKER: 1},
            {"user": MARKER},
        ):
            body = BODY | {"prompt": MARKER, "cache_salt": MARKER, "max_tokens": 40} | changes
            await site.client.post(
                f"{COMPLETIONS}?key={MARKER}", json=body, headers={"authorization": f"Bearer {MARKER}"}
            )
        await site.client.post(COMPLETIONS, content=MARKER, headers={"content-type": "application/json"})
        await site.room.freed()
    assert len(heard.starting("POST ")) == 7
    assert heard.starting("lost the verifier at ")
    assert MARKER not in "\n".join(line.text for line in heard.lines)
