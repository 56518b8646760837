"""A running echo service, and certificates."""

from collections.abc import AsyncIterator

import pytest

from specgate.rpc.channel import open_channel
from specgate.rpc.server import Server
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.tls import ClientTlsFiles, TlsFiles
from tests.specgate.rpc.certificates import Certificates
from tests.specgate.rpc.echo import EchoClient, EchoServicer, running_server


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Server, EchoServicer, EchoClient]]:
    servicer = EchoServicer()
    async with running_server(ServerOptions(drain_s=0.2), servicer) as server, open_channel(server.endpoint) as channel:
        yield server, servicer, EchoClient(channel)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def server_files(certificates: Certificates) -> TlsFiles:
    return TlsFiles(*certificates.issue("server"))


@pytest.fixture(scope="session")
def client_files(certificates: Certificates) -> ClientTlsFiles:
    return ClientTlsFiles(certificates.ca, *certificates.issue("client"))
