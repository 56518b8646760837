"""TLS and mTLS over a real connection, and files that cannot be used."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from specgate.errors import InvalidArgument
from specgate.rpc.channel import open_channel
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.tls import ClientTlsFiles, TlsFiles, channel_credentials, server_credentials
from tests.specgate.rpc.certificates import Certificates
from tests.specgate.rpc.echo import EchoClient, running_server


async def call(server_files: TlsFiles, client_files: ClientTlsFiles | None) -> str:
    async with (
        running_server(ServerOptions(tls=server_files)) as server,
        open_channel(server.endpoint, client_files) as channel,
    ):
        return await EchoClient(channel).echo("cpu")


async def test_who_knows_the_ca_and_shows_what_is_asked_for_is_let_in(
    server_files: TlsFiles, client_files: ClientTlsFiles, certificates: Certificates
) -> None:
    mutual, knows_ca = replace(server_files, client_ca=certificates.ca), ClientTlsFiles(certificates.ca)
    assert await call(server_files, knows_ca) == "cpu"
    assert await call(mutual, client_files) == "cpu"
    assert await call(server_files, replace(knows_ca, server_name="localhost")) == "cpu"


async def test_everybody_else_is_turned_away(server_files: TlsFiles, certificates: Certificates) -> None:
    mutual, knows_ca = replace(server_files, client_ca=certificates.ca), ClientTlsFiles(certificates.ca)
    elsewhere = replace(knows_ca, server_name="elsewhere")
    for server, client in ((server_files, None), (server_files, elsewhere), (mutual, knows_ca)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server, client)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, certificates: Certificates, server_files: TlsFiles, client_files: ClientTlsFiles
) -> None:
    none, empty = tmp_path / "none.pem", tmp_path / "ca.pem"
    empty.write_text("no certificate here\n")
    _, other_key = certificates.issue("other")
    unusable: list[tuple[Callable[[Any], object], object, str]] = [
        (server_credentials, TlsFiles(none, none), r"tls\.certificate: .*none\.pem cannot be read"),
        (server_credentials, replace(server_files, key=other_key), r"tls\.certificate: .*KEY_VALUES_MISMATCH"),
        (channel_credentials, ClientTlsFiles(none), r"tls\.ca: .*none\.pem cannot be read"),
        (channel_credentials, ClientTlsFiles(empty), r"tls\.ca: .* holds no certificate"),
        (channel_credentials, replace(client_files, key=None), r"tls\.certificate: .*given together"),
    ]
    for credentials, files, problem in unusable:
        with pytest.raises(InvalidArgument, match=f"^{problem}"):
            credentials(files)
