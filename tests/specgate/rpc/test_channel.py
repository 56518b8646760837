"""Channels: what they are opened with, and how fast they give up and come back."""

import time

import grpc
import pytest

from specgate.errors import ServiceUnavailable
from specgate.rpc.channel import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, open_channel
from specgate.rpc.endpoint import split_endpoint
from specgate.rpc.server import Server
from specgate.rpc.server_options import ServerOptions, channel_arguments
from specgate.rpc.status import from_rpc_error
from tests.specgate.rpc.echo import EchoClient, EchoServicer, running_server


def test_client_pings_are_slower_than_the_server_allows() -> None:
    client, server = dict(CHANNEL_OPTIONS), dict(channel_arguments(ServerOptions()))
    assert client["grpc.keepalive_time_ms"] > server["grpc.http2.min_ping_interval_without_data_ms"]


async def test_a_dead_peer_is_found_at_once_and_is_back_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with running_server() as server:
        host, port = split_endpoint(server.endpoint)
    async with open_channel(server.endpoint) as channel:
        client = EchoClient(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.echo("cpu")
        assert type(from_rpc_error(caught.value)) is ServiceUnavailable
        async with running_server(ServerOptions(host, port)):
            back = time.monotonic()
            await channel.channel_ready()
            assert await client.echo("cpu") == "cpu"
            assert time.monotonic() - back < 1.0


async def test_a_message_above_the_limit_is_refused(echo: tuple[Server, EchoServicer, EchoClient]) -> None:
    _, _, client = echo
    assert len(await client.echo("x" * (8 << 20))) == 8 << 20
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.echo("x" * (MAX_MESSAGE_BYTES + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
