"""Clients of the HTTP door that are slow, endless, or many: each is told off, and keeps nobody else out."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from orchestrator.api.http import protocol, sse
from orchestrator.api.http.body import MAX_BODY_BYTES
from orchestrator.api.http.middleware import MAX_HEADERS
from orchestrator.api.http.protocol import MAX_PIPELINED_BYTES, Deadlines
from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import MAX_HEAD_BYTES, HttpServer
from orchestrator.api.settings.listen import HttpSettings, TlsSettings
from specgate.errors import InvalidArgument
from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, serving_http
from tests.orchestrator.api.queues import Hanging, eventually, open_room
from tests.specgate.rpc.certificates import Certificates

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG_BYTES = 4 << 20
SHORT_S = 0.3
SOON_S = 20.0


class Wire:
    """A client that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.request_id = ""
        """Of the refusal."""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, most: int) -> bytes:
        return await self._reader.read(most)

    async def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        async with asyncio.timeout(SOON_S):
            return await self._reader.read()

    async def refusal(self) -> tuple[int, str]:
        """The status and the message of the only answer, after which the connection ends."""
        head, _, body = (await self.rest()).partition(b"\r\n\r\n")
        error = json.loads(body)["error"]
        self.request_id = error["request_id"]
        assert f"x-request-id: {self.request_id}".encode() in head
        return int(head.split()[1]), error["message"]


@asynccontextmanager
async def door(deadlines: Deadlines = Deadlines(), **settings: Any) -> AsyncIterator[str]:
    async with open_room() as room, serving_http(room.request_queue, deadlines=deadlines, **settings) as url:
        yield url


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


async def is_healthy(url: str) -> bool:
    async with httpx2.AsyncClient(timeout=SOON_S) as client:
        return (await client.get(f"{url}/healthz")).status_code == 200


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


async def test_who_only_holds_connections_keeps_nobody_out() -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(door(max_connections=8))
        wires = [await stack.enter_async_context(wire_to(url)) for _ in range(4)]
        for wire in wires:
            await wire.send(HEAD + b"Content-Length: 100\r\n\r\n1")
        assert await is_healthy(url)
        assert await wires[0].rest() == b""


@asynccontextmanager
async def long_answers(**settings: Any) -> AsyncIterator[HttpServer]:
    """A server whose every answer is LONG_BYTES long, which fits into no buffer."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(LONG_BYTES >> 16):
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    server = HttpServer(app, HttpSettings(**settings))
    await server.start()
    try:
        yield server
    finally:
        await server.drain(0.0)


async def test_a_client_that_reads_no_answer_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STALL_S", SHORT_S)
    async with long_answers() as server, wire_to(f"http://{server.endpoint}") as wire:
        await wire.send(GET)
        # Nothing is read until the server has given up.
        await eventually(lambda: server.num_connections == 0)
        assert len(await wire.rest()) < LONG_BYTES


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
async def test_a_client_that_reads_steadily_gets_all_of_its_answer(
    monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    monkeypatch.setattr(protocol, "STALL_S", SHORT_S)
    async with long_answers() as server, wire_to(f"http://{server.endpoint}") as wire:
        await wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + last + b"\r\n")
        received = 0
        while received < LONG_BYTES:
            received += len(await wire.read(1 << 17))
            await asyncio.sleep(0.05)


async def test_clients_that_read_nothing_keep_nobody_out() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(long_answers(max_connections=2))
        wires = [await stack.enter_async_context(wire_to(f"http://{server.endpoint}")) for _ in range(2)]
        for wire in wires:
            await wire.send(GET)
        await asyncio.sleep(SHORT_S)
        assert await is_healthy(f"http://{server.endpoint}")


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


async def test_a_drain_waits_for_nobody_who_idles_and_tells_who_uploads() -> None:
    async with open_room() as room:
        server = HttpServer(make_app(room.request_queue), HttpSettings())
        await server.start()
        url = f"http://{server.endpoint}"
        async with wire_to(url) as idle, wire_to(url) as uploading:
            await idle.send(GET)
            await uploading.send(HEAD + b"Content-Length: 100\r\n\r\n1")
            assert await is_healthy(url)
            async with asyncio.timeout(SOON_S / 2):
                draining = asyncio.create_task(server.drain(SOON_S))
                assert await uploading.refusal() == (503, "the gateway is draining")
                uploading.writer.close()
                await draining


async def test_a_connection_too_many_is_refused_while_all_are_at_work() -> None:
    async with open_room(Hanging) as room, serving_http(room.request_queue, max_connections=1) as url:
        async with httpx2.AsyncClient(timeout=SOON_S) as client:
            body = {"model": "fake", "prompt": PROMPT, "stream": True, "return_token_ids": True}
            async with client.stream("POST", url + COMPLETIONS, json=body), wire_to(url) as wire:
                status, message = await wire.refusal()
        assert status == 503
        assert "as many connections as it may have" in message


async def test_a_stream_that_has_nothing_to_say_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.1)
    async with open_room(Hanging) as room, serving_http(room.request_queue) as url:
        async with httpx2.AsyncClient(timeout=SOON_S) as client:
            body = {"model": "fake", "prompt": PROMPT, "stream": True, "return_token_ids": True}
            async with client.stream("POST", url + COMPLETIONS, json=body) as response:
                lines = response.aiter_lines()
                async with asyncio.timeout(SOON_S):
                    while await anext(lines) != ": waiting":
                        pass
        await room.freed()


async def test_clients_show_a_certificate_where_an_authority_is_given(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificate, key = certificates.issue("server")
    tls = TlsSettings(certificate=certificate, key=key, client_ca=certificates.ca)
    async with door(tls=tls) as url:
        secure = url.replace("http:", "https:")
        known, unknown = (ssl.create_default_context(cafile=certificates.ca) for _ in range(2))
        known.load_cert_chain(*certificates.issue("client"))
        async with httpx2.AsyncClient(verify=known, timeout=SOON_S) as client:
            assert (await client.get(f"{secure}/healthz")).status_code == 200
        async with httpx2.AsyncClient(verify=unknown, timeout=SOON_S) as client:
            with pytest.raises(httpx2.TransportError):
                await client.get(f"{secure}/healthz")


async def test_a_renewed_certificate_is_shown_from_the_next_connection_on(certificates: Certificates) -> None:
    certificate, key = certificates.issue("server")
    (certificate.parent / "other").mkdir()
    other = Certificates(certificate.parent / "other")
    old, new = (ssl.create_default_context(cafile=one.ca) for one in (certificates, other))
    async with door(tls=TlsSettings(certificate=certificate, key=key)) as url:
        secure = url.replace("http:", "https:")
        async with httpx2.AsyncClient(verify=old, timeout=SOON_S) as kept:
            assert (await kept.get(f"{secure}/healthz")).status_code == 200
            key.write_text("half written")
            async with httpx2.AsyncClient(verify=old, timeout=SOON_S) as client:
                assert (await client.get(f"{secure}/healthz")).status_code == 200
            for file, renewed in zip((certificate, key), other.issue("server"), strict=True):
                file.write_bytes(renewed.read_bytes())
            async with httpx2.AsyncClient(verify=new, timeout=SOON_S) as client:
                assert (await client.get(f"{secure}/healthz")).status_code == 200
            # Who is connected stays so.
            assert (await kept.get(f"{secure}/healthz")).status_code == 200
            async with httpx2.AsyncClient(verify=old, timeout=SOON_S) as client:
                with pytest.raises(httpx2.TransportError):
                    await client.get(f"{secure}/healthz")


async def test_a_port_in_use_is_refused() -> None:
    async with door() as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(InvalidArgument, match=f"port: {port} on 127.0.0.1 cannot be bound: Address already in use"):
            async with door(port=port):
                pass
