"""deploy/edge/nginx.conf, run by a real nginx in front of both doors: streams, keys, refusals, and what it hides."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from websockets.exceptions import InvalidStatus

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.http.upgrade import BEARER
from orchestrator.api.keys.key_file import KeyEntry, hash_of, write_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.settings.listen import HttpSettings, Listen
from specgate.errors import Unauthenticated
from specgate.rpc.channel import open_channel
from specgate.rpc.tls import ClientTlsFiles
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.orchestrator.api.http_serving import COMPLETIONS, PROMPT, TOKENIZER, Telling, ascii_tokenizer, said
from tests.orchestrator.api.keys.test_doors import RIGHT, generated, shown
from tests.orchestrator.api.queues import Hanging, Room, open_room
from tests.orchestrator.api.sockets import answer, ask, socket_to, text_of
from tests.specgate.rpc.certificates import Certificates
from tests.support.fake_services import free_port
from tests.support.patience import patience
from tests.support.programs import program

CONFIG = Path(__file__).resolve().parent.parent.parent / "deploy" / "edge" / "nginx.conf"
BODY = {"model": "fake", "prompt": PROMPT, "max_tokens": 12, "ignore_eos": True}


class Edge(NamedTuple):
    room: Room
    port: int
    certificates: Certificates

    def client(self) -> httpx2.AsyncClient:
        context = ssl.create_default_context(cafile=self.certificates.ca)
        return httpx2.AsyncClient(base_url=f"https://127.0.0.1:{self.port}", verify=context, timeout=60)


def configured(folder: Path, certificates: Certificates, port: int, http: str, grpc: str) -> Path:
    """Return a copy of the configuration with a test's addresses and files; each must be in it."""
    certificate, key = certificates.issue("edge")
    text = CONFIG.read_text()
    for ours, theirs in {
        "/run/nginx-specgate.pid": str(folder / "nginx.pid"),
        "127.0.0.1:8000": http,
        "127.0.0.1:8001": grpc,
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/specgate/tls.crt": str(certificate),
        "/etc/specgate/tls.key": str(key),
    }.items():
        assert ours in text
        text = text.replace(ours, theirs)
    (folder / "nginx.conf").write_text(text)
    return folder / "nginx.conf"


@asynccontextmanager
async def edge(folder: Path, make_verifier: Any = Telling) -> AsyncIterator[Edge]:
    nginx = program("nginx", "nginx-light")
    write_keys(folder / "keys.yaml", [KeyEntry(name="ann", sha256=hash_of(RIGHT))])
    keyring, certificates, port = Keyring(folder / "keys.yaml"), Certificates(folder), free_port()
    async with open_room(make_verifier, ascii_tokenizer()) as room:
        http = HttpServer(make_app(room.request_queue, keyring=keyring), HttpSettings())
        door = GrpcApi(room.request_queue, Listen(), keyring, drain_s=0.0)
        await http.start()
        await door.start()
        config = configured(folder, certificates, port, http.endpoint, door.endpoint)
        process = await asyncio.create_subprocess_exec(nginx, "-c", config, "-p", folder, "-g", "daemon off;")
        try:
            async with patience():
                while True:
                    try:
                        (await asyncio.open_connection("127.0.0.1", port))[1].close()
                        break
                    except ConnectionRefusedError:
                        assert process.returncode is None
                        await asyncio.sleep(0.05)
            yield Edge(room, port, certificates)
        finally:
            process.terminate()
            await process.wait()
            await door.drain()
            await http.drain(0.0)


async def test_streams_keys_and_refusals_pass_the_edge(tmp_path: Path) -> None:
    async with edge(tmp_path) as opened, opened.client() as client:
        assert (await client.post(COMPLETIONS, json=BODY)).status_code == 401
        answer = await client.post(COMPLETIONS, json=BODY, headers=shown(RIGHT) | {"x-request-id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
        text = answer.json()["choices"][0]["text"]
        streamed = []
        async with client.stream("POST", COMPLETIONS, json=BODY | {"stream": True}, headers=shown(RIGHT)) as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            streamed = [line async for line in response.aiter_lines() if line.startswith("data: {")]
        assert len(streamed) > 2
        assert (await client.post(COMPLETIONS, json=BODY | {"max_tokens": -1}, headers=shown(RIGHT))).status_code == 400
        assert (await client.post(COMPLETIONS, content=b" " * (9 << 20), headers=shown(RIGHT))).status_code == 413
        for hidden in ("/metrics", "/metrics/targets", "/readyz"):
            assert (await client.get(hidden, headers=shown(RIGHT))).status_code == 404
        assert (await client.get("/v1/models", headers=shown(RIGHT))).status_code == 200
        assert text


async def test_a_client_that_leaves_the_edge_frees_its_sessions(tmp_path: Path) -> None:
    async with edge(tmp_path, Hanging) as opened:
        async with opened.client() as client:
            body = BODY | {"stream": True, "return_token_ids": True}
            async with client.stream("POST", COMPLETIONS, json=body, headers=shown(RIGHT)) as response:
                lines = response.aiter_lines()  # kept: one that is dropped closes the connection
                await anext(lines)
        await opened.room.freed()


async def test_a_websocket_passes_the_edge(tmp_path: Path) -> None:
    async with edge(tmp_path) as opened:
        own, trust = f"https://127.0.0.1:{opened.port}", ssl.create_default_context(cafile=opened.certificates.ca)
        for origin, subprotocols, status in (("https://page.example", [BEARER + RIGHT], 403), (own, [], 401)):
            with pytest.raises(InvalidStatus) as refused:
                async with socket_to(own, ssl=trust, origin=origin, subprotocols=["specgate", *subprotocols]):
                    pass
            assert refused.value.response.status_code == status
        async with socket_to(own, ssl=trust, origin=own, subprotocols=["specgate", BEARER + RIGHT]) as socket:
            assert text_of(await ask(socket, BODY)) == TOKENIZER.decode(said(tuple(PROMPT), 12))


async def test_cancel_and_leaving_pass_the_edge(tmp_path: Path) -> None:
    async with edge(tmp_path, Hanging) as opened:
        own, trust = f"https://127.0.0.1:{opened.port}", ssl.create_default_context(cafile=opened.certificates.ca)
        async with socket_to(own, ssl=trust, additional_headers=shown(RIGHT)) as socket:
            await socket.send(json.dumps(BODY | {"return_token_ids": True}))
            await socket.recv()
            await socket.send('{"cancel": true}')
            assert (await answer(socket))[-1] == '{"cancelled":true}'
            await socket.send(json.dumps(BODY | {"return_token_ids": True}))
            await socket.recv()
        await opened.room.freed()


async def test_grpc_passes_the_edge(tmp_path: Path) -> None:
    async with edge(tmp_path) as opened:
        channel = open_channel(f"127.0.0.1:{opened.port}", ClientTlsFiles(opened.certificates.ca))
        stub = GenerationServiceStub(channel)
        try:
            assert await generated(stub, RIGHT, "GenerateStream", max_tokens=12) == 12
            assert await generated(stub, RIGHT, max_tokens=12) == 12
            assert isinstance(await generated(stub, "sg-wrong"), Unauthenticated)
        finally:
            await channel.close()
