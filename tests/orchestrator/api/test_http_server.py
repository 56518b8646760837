"""Requests at the HTTP API that are slow, endless, malformed or pipelined."""

import asyncio
import contextlib
import json

import httpx2
import pytest

from orchestrator.api.http.body import MAX_BODY_BYTES
from orchestrator.api.http.middleware import MAX_HEADERS
from orchestrator.api.http.protocol import MAX_PIPELINED_BYTES, Deadlines
from orchestrator.api.http.server import MAX_HEAD_BYTES
from tests.orchestrator.api.http_serving import PROMPT, serving_http
from tests.orchestrator.api.queues import Hanging, open_room
from tests.orchestrator.api.wires import GET, HEAD, SHORT_S, Wire, door, wire_to
from tests.support.patience import eventually


@pytest.mark.parametrize(
    ("sent", "phase"),
    [
        (HEAD, "head"),
        (HEAD + b"Content-Length: 100\r\n\r\n1", "body"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1", "body"),
    ],
    ids=["head", "body", "chunked body"],
)
async def test_half_a_request_is_refused_in_time(sent: bytes, phase: str) -> None:
    async with door(Deadlines(head_s=SHORT_S, body_s=SHORT_S)) as url, wire_to(url) as wire:
        await wire.send(sent)
        assert await wire.refusal() == (408, f"the request's {phase} was not complete within {SHORT_S:g} s")


async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word() -> None:
    async with door(Deadlines(head_s=SHORT_S)) as url, wire_to(url) as wire:
        assert await wire.rest() == b""


async def test_a_refusal_has_the_id_that_came_in_the_head() -> None:
    async with door(Deadlines(body_s=SHORT_S)) as url, wire_to(url) as wire:
        await wire.send(HEAD + b"X-Request-Id: mine\r\nContent-Length: 100\r\n\r\n1")
        assert (await wire.refusal())[0] == 408
        assert wire.request_id == "mine"


async def test_a_head_that_trickles_gains_no_time_by_it() -> None:
    async with door(Deadlines(head_s=SHORT_S)) as url, wire_to(url) as wire:
        trickle = asyncio.create_task(_trickle(wire))
        status, _ = await wire.refusal()
        assert (status, trickle.done()) == (408, False)
        trickle.cancel()


async def _trickle(wire: Wire) -> None:
    for byte in HEAD:
        await wire.send(bytes([byte]))
        await asyncio.sleep(0.05)


async def test_the_next_head_on_a_connection_has_its_own_time() -> None:
    async with door(Deadlines(head_s=SHORT_S)) as url, wire_to(url) as wire:
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(2 * SHORT_S)
        await wire.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        answers = await wire.rest()
        assert answers.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in answers


async def test_many_headers_and_long_heads_are_refused() -> None:
    async with (
        door() as url,
        httpx2.AsyncClient(headers={f"a-{number}": "1" for number in range(MAX_HEADERS)}) as client,
    ):
        answer = await client.get(f"{url}/healthz")
        assert answer.status_code == 431
        assert f"headers; {MAX_HEADERS} are the most" in answer.json()["error"]["message"]
        async with wire_to(url) as wire:
            await wire.send(HEAD + b"A: " + b"a" * 2 * MAX_HEAD_BYTES)
            assert (await wire.refusal())[0] == 431


async def test_what_is_no_http_is_refused() -> None:
    async with door() as url, wire_to(url) as wire:
        await wire.send(b"\x80\x04\x95 pickled\r\n\r\n")
        assert (await wire.refusal())[0] == 400


async def test_an_endless_body_ends_the_connection_at_the_limit() -> None:
    async with door() as url, wire_to(url) as wire:
        await wire.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
        for _ in range((MAX_BODY_BYTES >> 20) + 1):
            await wire.send(chunk)
        status, message = await wire.refusal()
        assert (status, message) == (413, f"the body is longer than {MAX_BODY_BYTES} bytes")


async def test_who_pipelines_without_end_loses_the_connection() -> None:
    async with open_room(Hanging) as room, serving_http(room.request_queue) as url, wire_to(url) as wire:
        body = json.dumps({"model": "fake", "prompt": PROMPT}).encode()
        await wire.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await eventually(lambda: room.request_queue.num_running == 1)
        await wire.send(GET * (MAX_PIPELINED_BYTES // len(GET) + 1))
        await room.freed()


async def test_who_leaves_behind_a_pipelined_request_is_noticed() -> None:
    async with open_room(Hanging) as room, serving_http(room.request_queue) as url:
        async with wire_to(url) as wire:
            body = json.dumps({"model": "fake", "prompt": PROMPT}).encode()
            await wire.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body + GET)
            await eventually(lambda: room.request_queue.num_running == 1)
        await room.freed()


async def test_pipelined_requests_are_answered_in_turn() -> None:
    async with door() as url, wire_to(url) as wire:
        await wire.send(GET * 3 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await wire.rest()).count(b'{"status":"alive"}') == 4


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
async def test_a_refused_upload_is_told_why(last: bytes) -> None:
    async with door() as url, wire_to(url) as wire:
        await wire.send(HEAD + last + b"Content-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1))
        with contextlib.suppress(ConnectionError):
            for _ in range(4):
                await wire.send(bytes(1 << 20))
        assert (await wire.refusal())[0] == 413
