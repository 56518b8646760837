"""TLS and mTLS over a real connection, and files that cannot be used."""

from pathlib import Path

import grpc
import pytest

from specgate.errors import InvalidArgument
from specgate.rpc.channel import open_channel
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.tls import ClientTlsFiles, TlsFiles, channel_credentials, server_credentials
from tests.specgate.rpc.certificates import Certificates
from tests.specgate.rpc.echo import (
    EchoClient,
    EchoServicer,
    add_echo_to_server,
    running_server,
)


async def call(options: ServerOptions, client: ClientTlsFiles | None) -> str:
    async with running_server(options) as server:
        add_echo_to_server(EchoServicer(), server.handlers)
        async with open_channel(server.endpoint, client) as channel:
            return await EchoClient(channel).echo("cpu")


async def test_tls(server_files: TlsFiles, certificates: Certificates) -> None:
    assert await call(ServerOptions(tls=server_files), ClientTlsFiles(certificates.ca)) == "cpu"


async def test_mutual_tls(server_files: TlsFiles, client_files: ClientTlsFiles, certificates: Certificates) -> None:
    mutual = TlsFiles(server_files.certificate, server_files.key, certificates.ca)
    assert await call(ServerOptions(tls=mutual), client_files) == "cpu"


async def test_mutual_tls_turns_a_client_without_a_certificate_away(
    server_files: TlsFiles, certificates: Certificates
) -> None:
    mutual = TlsFiles(server_files.certificate, server_files.key, certificates.ca)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(ServerOptions(tls=mutual), ClientTlsFiles(certificates.ca))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_plain_text_to_a_tls_server_fails(server_files: TlsFiles) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call(ServerOptions(tls=server_files), None)


async def test_the_name_in_the_certificate_can_be_given(server_files: TlsFiles, certificates: Certificates) -> None:
    wrong = ClientTlsFiles(certificates.ca, server_name="elsewhere")
    with pytest.raises(grpc.aio.AioRpcError):
        await call(ServerOptions(tls=server_files), wrong)
    right = ClientTlsFiles(certificates.ca, server_name="localhost")
    assert await call(ServerOptions(tls=server_files), right) == "cpu"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"tls\.certificate: .*none\.pem cannot be read"):
        server_credentials(TlsFiles(tmp_path / "none.pem", tmp_path / "none.key"))
    with pytest.raises(InvalidArgument, match=r"tls\.ca: .*none\.pem cannot be read"):
        channel_credentials(ClientTlsFiles(tmp_path / "none.pem"))


def test_a_key_of_another_certificate_is_refused(certificates: Certificates, server_files: TlsFiles) -> None:
    _, other_key = certificates.issue("other")
    with pytest.raises(InvalidArgument, match=r"tls\.certificate: .*KEY_VALUES_MISMATCH"):
        server_credentials(TlsFiles(server_files.certificate, other_key))


def test_a_ca_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "ca.pem"
    empty.write_text("no certificate here\n")
    with pytest.raises(InvalidArgument, match=r"tls\.ca: .* holds no certificate"):
        channel_credentials(ClientTlsFiles(empty))


def test_a_certificate_without_its_key_is_refused(client_files: ClientTlsFiles) -> None:
    with pytest.raises(InvalidArgument, match="given together"):
        channel_credentials(ClientTlsFiles(certificate=client_files.certificate))
