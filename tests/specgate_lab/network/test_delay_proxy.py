"""The delaying proxy against real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from specgate.rpc.endpoint import split_endpoint
from specgate_lab.network.delay_proxy import DelayProxy
from tests.support.fake_services import unused_endpoint

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def proxied(serve: Serve, one_way_s: float) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to ``serve`` through a proxy."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        proxy = DelayProxy(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", one_way_s)
        reader, writer = await asyncio.open_connection(*split_endpoint(await proxy.start()))
        try:
            yield reader, writer
        finally:
            writer.close()
            await proxy.stop()
            await proxy.stop()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
    writer.close()


async def test_each_direction_takes_its_half() -> None:
    heard_s: list[float] = []
    now_s = asyncio.get_running_loop().time

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        heard_s.append(now_s())
        await reader.read()
        writer.close()

    async with proxied(serve, 0.05) as (reader, writer):
        start_s = now_s()
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        end_s = now_s()
    assert heard_s[0] - start_s >= 0.05
    assert end_s - heard_s[0] >= 0.05


@pytest.mark.timeout(40)
async def test_order_and_rate_are_kept() -> None:
    """One chunk after the other would take 100 s."""
    sent = b"".join(index.to_bytes(4, "big") * (1 << 14) for index in range(200))
    async with proxied(echo, 0.25) as (reader, writer):
        received = asyncio.create_task(reader.readexactly(len(sent)))
        writer.write(sent)
        await writer.drain()
        assert await received == sent


async def test_an_end_is_passed_on_after_all_that_came_before() -> None:
    async with proxied(echo, 0.02) as (reader, writer):
        writer.write(b"last words")
        writer.write_eof()
        assert await reader.read() == b"last words"


async def test_a_target_that_is_not_there_closes_the_connection() -> None:
    proxy = DelayProxy(unused_endpoint(), 0.0)
    reader, writer = await asyncio.open_connection(*split_endpoint(await proxy.start()))
    assert await reader.read() == b""
    writer.close()
    await proxy.stop()
