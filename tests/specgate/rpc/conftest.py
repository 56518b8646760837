"""A running echo service, and certificates."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from specgate.rpc.channel import open_channel
from specgate.rpc.server import Server
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.tls import ClientTlsFiles, TlsFiles
from tests.specgate.rpc.certificates import Certificates
from tests.specgate.rpc.echo import EchoClient, EchoServicer, add_echo_to_server, running_server


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Server, EchoServicer, EchoClient]]:
    servicer = EchoServicer()
    async with running_server(ServerOptions(drain_s=0.2)) as server:
        add_echo_to_server(servicer, server.handlers)
        async with open_channel(server.endpoint) as channel:
            yield server, servicer, EchoClient(channel)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - the conditions are plain counters, with no event to await
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command")
    return Certificates(tmp_path_factory.mktemp("tls"), openssl)


@pytest.fixture(scope="session")
def server_files(certificates: Certificates) -> TlsFiles:
    return TlsFiles(*certificates.issue("server"))


@pytest.fixture(scope="session")
def client_files(certificates: Certificates) -> ClientTlsFiles:
    return ClientTlsFiles(certificates.ca, *certificates.issue("client"))
