"""TLS and mTLS over a real connection, and files that cannot be used."""

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from orchestrator.services.streams import ChannelCache
from specgate.errors import InvalidArgument
from specgate.rpc.channel import open_channel
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.tls import ClientTlsFiles, TlsFiles, channel_credentials, server_context, server_credentials
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
        (server_credentials, replace(server_files, key=empty), r"tls\.certificate: .* no whole PEM file"),
        (channel_credentials, ClientTlsFiles(none), r"tls\.ca: .*none\.pem cannot be read"),
        (channel_credentials, ClientTlsFiles(empty), r"tls\.ca: .* holds no certificate"),
        (channel_credentials, replace(client_files, key=None), r"tls\.certificate: .*given together"),
    ]
    for credentials, files, problem in unusable:
        with pytest.raises(InvalidArgument, match=f"^{problem}"):
            credentials(files)


def renewed(files: TlsFiles, by: Certificates, name: str) -> None:
    """Put another certificate in the place of a server's: the certificate first, so that the pair does not match."""
    certificate, key = by.issue(name)
    files.certificate.write_bytes(certificate.read_bytes())
    files.key.write_bytes(key.read_bytes())


async def test_a_renewed_certificate_is_shown_from_the_next_connection_on(
    tmp_path: Path, certificates: Certificates
) -> None:
    """The new one is of another authority, so that who sees it can tell."""
    other = Certificates(folder_in(tmp_path, "other"))
    server_files = TlsFiles(*certificates.issue("renewed"))
    old, new = ClientTlsFiles(certificates.ca), ClientTlsFiles(other.ca)
    async with running_server(ServerOptions(tls=server_files)) as server, open_channel(server.endpoint, old) as kept:
        assert await EchoClient(kept).echo("cpu") == "cpu"
        server_files.certificate.write_text("half written")
        async with open_channel(server.endpoint, old) as channel:
            assert await EchoClient(channel).echo("cpu") == "cpu"
        renewed(server_files, other, "server")
        async with open_channel(server.endpoint, new) as channel:
            assert await EchoClient(channel).echo("cpu") == "cpu"
        # Who is connected stays so.
        assert await EchoClient(kept).echo("cpu") == "cpu"
        async with open_channel(server.endpoint, old) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await EchoClient(channel).echo("cpu")


async def test_sessions_from_now_on_use_our_own_renewed_certificate(
    tmp_path: Path, server_files: TlsFiles, certificates: Certificates
) -> None:
    mutual = replace(server_files, client_ca=certificates.ca)
    stranger = Certificates(folder_in(tmp_path, "other"))
    certificate, key = certificates.issue("ours")
    good = certificate.read_bytes(), key.read_bytes()
    bad, bad_key = stranger.issue("stranger")
    channels = ChannelCache(ClientTlsFiles(certificates.ca, certificate, key))
    async with running_server(ServerOptions(tls=mutual)) as server:
        kept = channels.get(server.endpoint)
        assert await EchoClient(kept).echo("cpu") == "cpu"
        certificate.write_bytes(bad.read_bytes())
        key.write_bytes(bad_key.read_bytes())
        with pytest.raises(grpc.aio.AioRpcError):
            await EchoClient(channels.get(server.endpoint)).echo("cpu")
        certificate.write_bytes(good[0])
        key.write_bytes(good[1])
        assert await EchoClient(channels.get(server.endpoint)).echo("cpu") == "cpu"
        # Half written files are not a request's fault, nor that of an endpoint that is new by then.
        certificate.write_text("half written")
        assert await EchoClient(channels.get(server.endpoint)).echo("cpu") == "cpu"
        again = server.endpoint.replace("127.0.0.1", "localhost")
        assert await EchoClient(channels.get(again)).echo("cpu") == "cpu"
        await channels.close()


def shaken(
    client: ssl.SSLContext, server: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """Let a client and a server shake hands in memory; return the session that the client may resume."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    theirs.write(b"x")
    assert ours.read() == b"x"
    return ours.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_resumed_past_the_authority_that_let_it_in(
    tmp_path: Path, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    authority = tmp_path / "client_ca.pem"
    authority.write_bytes(certificates.ca.read_bytes())
    server = server_context(TlsFiles(*certificates.issue("door"), authority))
    client = ssl.create_default_context(cafile=certificates.ca)
    client.load_cert_chain(*certificates.issue("caller"))
    client.maximum_version = version
    session = None
    with suppress(ssl.SSLError):
        session = shaken(client, server)
        assert version is ssl.TLSVersion.TLSv1_3
    authority.write_bytes(Certificates(folder_in(tmp_path, "next")).ca.read_bytes())
    with pytest.raises(ssl.SSLError):
        shaken(client, server, session)


def folder_in(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name
