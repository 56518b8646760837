"""deploy/docker/health.py, run as containers run it, against servers that are well, ill or not there."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio

from specgate.rpc.tls import TlsFiles, server_credentials
from tests.deploy.composition import FOLDER
from tests.specgate.rpc.certificates import Certificates

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def asked(*words: str | Path) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, FOLDER / "health.py", *words)
    async with asyncio.timeout(60):
        return await process.wait()


@asynccontextmanager
async def service(status: Any, tls: TlsFiles | None = None) -> AsyncIterator[str]:
    server, health = grpc.aio.server(), aio.HealthServicer()
    await health.set("", status)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    add = server.add_insecure_port if tls is None else lambda at: server.add_secure_port(at, server_credentials(tls))
    port = add("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def door(status: str) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/readyz"


@pytest.mark.parametrize(("status", "code"), [(SERVING, 0), (NOT_SERVING, 1)])
async def test_a_service_is_asked_by_its_health_protocol(status: Any, code: int) -> None:
    async with service(status) as endpoint:
        assert await asked(endpoint) == code


@pytest.mark.parametrize(("status", "code"), [("200 OK", 0), ("503 Service Unavailable", 1)])
async def test_a_gateway_is_asked_by_http(status: str, code: int) -> None:
    async with door(status) as url:
        assert await asked(url) == code


async def test_nobody_is_not_well() -> None:
    async with service(SERVING) as endpoint, door("200 OK") as url:
        pass
    assert await asked(endpoint) == 1
    assert await asked(url) == 1


async def test_over_tls_both_sides_show_a_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificate, key = certificates.issue("verifier")
    own = ("--certificate", certificate, "--key", key)
    async with service(SERVING, TlsFiles(certificate, key, certificates.ca)) as endpoint:
        assert await asked(endpoint, "--ca", certificates.ca, "--name", "localhost", *own) == 0
        assert await asked(endpoint, "--ca", certificates.ca, "--name", "localhost") == 1
        assert await asked(endpoint, "--ca", certificates.ca, "--name", "drafter", *own) == 1
        assert await asked(endpoint) == 1
