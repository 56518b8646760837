"""Connections to the HTTP API: how many there are, who reads, when they end, and over TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from orchestrator.api.http import protocol, sse
from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.settings.listen import HttpSettings, TlsSettings
from specgate.errors import InvalidArgument
from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, serving_http
from tests.orchestrator.api.queues import Hanging, open_room
from tests.orchestrator.api.wires import GET, HEAD, SHORT_S, door, is_healthy, wire_to
from tests.specgate.rpc.certificates import Certificates
from tests.support.patience import PATIENCE_S, eventually, patience

LONG_BYTES = 4 << 20


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


async def test_a_drain_waits_for_nobody_who_idles_and_tells_who_uploads() -> None:
    async with open_room() as room:
        server = HttpServer(make_app(room.request_queue), HttpSettings())
        await server.start()
        url = f"http://{server.endpoint}"
        async with wire_to(url) as idle, wire_to(url) as uploading:
            await idle.send(GET)
            await uploading.send(HEAD + b"Content-Length: 100\r\n\r\n1")
            assert await is_healthy(url)
            async with asyncio.timeout(PATIENCE_S / 2):
                draining = asyncio.create_task(server.drain(PATIENCE_S))
                assert await uploading.refusal() == (503, "the gateway is draining")
                uploading.writer.close()
                await draining


async def test_a_connection_too_many_is_refused_while_all_are_at_work() -> None:
    async with open_room(Hanging) as room, serving_http(room.request_queue, max_connections=1) as url:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            body = {"model": "fake", "prompt": PROMPT, "stream": True, "return_token_ids": True}
            async with client.stream("POST", url + COMPLETIONS, json=body), wire_to(url) as wire:
                status, message = await wire.refusal()
        assert status == 503
        assert "as many connections as it may have" in message


async def test_a_stream_that_has_nothing_to_say_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.1)
    async with open_room(Hanging) as room, serving_http(room.request_queue) as url:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            body = {"model": "fake", "prompt": PROMPT, "stream": True, "return_token_ids": True}
            async with client.stream("POST", url + COMPLETIONS, json=body) as response:
                lines = response.aiter_lines()
                async with patience():
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
        async with httpx2.AsyncClient(verify=known, timeout=PATIENCE_S) as client:
            assert (await client.get(f"{secure}/healthz")).status_code == 200
        async with httpx2.AsyncClient(verify=unknown, timeout=PATIENCE_S) as client:
            with pytest.raises(httpx2.TransportError):
                await client.get(f"{secure}/healthz")


async def test_a_renewed_certificate_is_shown_from_the_next_connection_on(certificates: Certificates) -> None:
    certificate, key = certificates.issue("server")
    (certificate.parent / "other").mkdir()
    other = Certificates(certificate.parent / "other")
    old, new = (ssl.create_default_context(cafile=one.ca) for one in (certificates, other))
    async with door(tls=TlsSettings(certificate=certificate, key=key)) as url:
        secure = url.replace("http:", "https:")
        async with httpx2.AsyncClient(verify=old, timeout=PATIENCE_S) as kept:
            assert (await kept.get(f"{secure}/healthz")).status_code == 200
            key.write_text("half written")
            async with httpx2.AsyncClient(verify=old, timeout=PATIENCE_S) as client:
                assert (await client.get(f"{secure}/healthz")).status_code == 200
            for file, renewed in zip((certificate, key), other.issue("server"), strict=True):
                file.write_bytes(renewed.read_bytes())
            async with httpx2.AsyncClient(verify=new, timeout=PATIENCE_S) as client:
                assert (await client.get(f"{secure}/healthz")).status_code == 200
            # Who is connected stays so.
            assert (await kept.get(f"{secure}/healthz")).status_code == 200
            async with httpx2.AsyncClient(verify=old, timeout=PATIENCE_S) as client:
                with pytest.raises(httpx2.TransportError):
                    await client.get(f"{secure}/healthz")


async def test_a_port_in_use_is_refused() -> None:
    async with door() as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(InvalidArgument, match=f"port: {port} on 127.0.0.1 cannot be bound: Address already in use"):
            async with door(port=port):
                pass
