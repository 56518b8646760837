"""Health: NOT_SERVING while loading, draining, and over a dead engine."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specgate.rpc.channel import open_channel
from specgate.rpc.health import ENGINE_AGE_KEY
from specgate.rpc.server import Server
from specgate.rpc.server_options import ServerOptions
from tests.specgate.rpc.echo import SERVICE, running_server
from tests.support.patience import PATIENCE_S, patience

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Engine:
    """An engine whose heartbeat the test sets."""

    age_s = 0.0

    def read_age_s(self) -> float:
        return self.age_s


class HealthClient:
    """The stub of health."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = health_pb2_grpc.HealthStub(channel)

    async def check(self, service: str = SERVICE) -> tuple[int, str | None]:
        """Return the status, and the engine's age."""
        call = self._stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
        response = await call
        return int(response.status), (await call.trailing_metadata()).get(ENGINE_AGE_KEY)

    async def watch(self) -> AsyncIterator[int]:
        call = self._stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        try:
            async for response in call:
                yield int(response.status)
        finally:
            call.cancel()


@pytest.fixture
async def loading() -> AsyncIterator[tuple[Server, HealthClient]]:
    options = ServerOptions(max_engine_age_s=0.2)
    async with running_server(options, ready=False) as server, open_channel(server.endpoint) as channel:
        yield server, HealthClient(channel)


async def test_it_serves_once_it_is_ready(loading: tuple[Server, HealthClient]) -> None:
    server, client = loading
    assert [await client.check(name) for name in ("", SERVICE)] == [(NOT_SERVING, None)] * 2
    await server.set_ready()
    assert [await client.check(name) for name in ("", SERVICE)] == [(SERVING, None)] * 2
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.check("another")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_check_knows_of_a_dead_engine_at_once_and_tells_its_age(loading: tuple[Server, HealthClient]) -> None:
    server, client = loading
    engine = Engine()
    await server.set_ready(engine.read_age_s)
    seen = []
    for engine.age_s in (0.125, 0.25, 0.125, float("inf")):
        seen.append(await client.check())
    assert seen == [(SERVING, "125"), (NOT_SERVING, "250"), (SERVING, "125"), (NOT_SERVING, "1000000000")]


async def test_watch_hears_of_death_recovery_and_drain(loading: tuple[Server, HealthClient]) -> None:
    server, client = loading
    engine = Engine()
    async with patience():
        statuses = client.watch()
        assert await anext(statuses) == NOT_SERVING
        await server.set_ready(engine.read_age_s)
        assert await anext(statuses) == SERVING
        engine.age_s = 1.0
        assert await anext(statuses) == NOT_SERVING
        engine.age_s = 0.0
        assert await anext(statuses) == SERVING
        drain = asyncio.create_task(server.drain())
        assert await anext(statuses) == NOT_SERVING
        await statuses.aclose()  # type: ignore[attr-defined]
        await drain
