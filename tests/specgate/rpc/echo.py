"""A service that needs no model: what it is sent it returns, or obeys."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from specgate.errors import InvalidArgument, NonFiniteLogits, OutOfSync
from specgate.rpc.server import Server
from specgate.rpc.server_options import ServerOptions
from specgate.v1 import types_pb2
from tests.support.patience import PATIENCE_S

SERVICE = "specgate.test.EchoService"
SECRET = "the prompt at /home/user"
FAILURES = {
    "invalid": InvalidArgument("gamma", "65 is outside [0, 64]"),
    "out of sync": OutOfSync("the session is at 7, the round starts from 9"),
    "not finite": NonFiniteLogits("row 3"),
    "crash": RuntimeError(SECRET),
}


class EchoServicer:
    """Echoes device names; some of them are orders. ``released`` counts the streams that were cleaned up."""

    def __init__(self) -> None:
        self.released = 0
        self.held = asyncio.Event()

    async def echo(self, request: types_pb2.GetModelInfoResponse, context: Any) -> Any:
        """Return the request, or do what it says."""
        await self._obey(request.device)
        return request

    async def chat(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Return each request, or do what it says."""
        try:
            async for request in requests:
                await self._obey(request.device)
                yield request
        finally:
            self.released += 1

    async def _obey(self, order: str) -> None:
        if order in FAILURES:
            raise FAILURES[order]
        if order == "hold":
            self.held.set()
            await asyncio.Event().wait()


def add_echo_to_server(servicer: EchoServicer, handlers: Any) -> None:
    """Do what generated code does."""
    message = types_pb2.GetModelInfoResponse
    coders = (message.FromString, message.SerializeToString)
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(servicer.echo, *coders),
        "Chat": grpc.stream_stream_rpc_method_handler(servicer.chat, *coders),
    }
    handlers.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))


class EchoClient:
    """The stub; it sends device names."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        message = types_pb2.GetModelInfoResponse
        coders = (message.SerializeToString, message.FromString)
        self.chat: Any = channel.stream_stream(f"/{SERVICE}/Chat", *coders)
        self.raw_chat: Any = channel.stream_stream(f"/{SERVICE}/Chat")
        self.raw_echo: Any = channel.unary_unary(f"/{SERVICE}/Echo")
        self.unknown: Any = channel.unary_unary(f"/{SERVICE}/Unknown")
        self._echo: Any = channel.unary_unary(f"/{SERVICE}/Echo", *coders)

    def echo_call(self, device: str, *metadata: tuple[str, str]) -> Any:
        """Return the call."""
        return self._echo(order(device), timeout=PATIENCE_S, metadata=metadata)

    async def echo(self, device: str) -> str:
        """Return what came back."""
        response = await self.echo_call(device)
        return str(response.device)


def order(device: str) -> types_pb2.GetModelInfoResponse:
    """Return the message that carries ``device``."""
    return types_pb2.GetModelInfoResponse(device=device)


@asynccontextmanager
async def running_server(
    options: ServerOptions | None = None, servicer: EchoServicer | None = None, *, ready: bool = True
) -> AsyncIterator[Server]:
    """Yield a started server that echoes, or one that still loads and serves nothing, and stop it."""
    server = Server(SERVICE, options or ServerOptions())
    await server.start()
    if ready:
        add_echo_to_server(servicer or EchoServicer(), server.handlers)
        await server.set_ready()
    try:
        yield server
    finally:
        await asyncio.wait_for(server.drain(), PATIENCE_S)
