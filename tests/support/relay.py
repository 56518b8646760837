"""Passes gRPC calls on as bytes, whatever their messages are: what crosses it can be recorded, or changed."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Self

import grpc

from specgate.rpc.channel import open_channel

LOOPBACK = "127.0.0.1"


class Relay(grpc.GenericRpcHandler):
    """A server on a port of its own in front of ``target``. To gRPC a unary call is a stream of one message."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.endpoint = ""
        self.refusals: list[str] = []
        """Why ``target`` ended calls."""

    async def asked(self, method: str, message: bytes) -> bytes:
        """Return what ``target`` is sent in place of a client's message. ``method`` is "/package.Service/Method"."""
        return message

    async def answered(self, method: str, message: bytes) -> bytes:
        """Return what the client is sent in place of an answer."""
        return message

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self._target)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self.endpoint = f"{LOOPBACK}:{self._server.add_insecure_port(f'{LOOPBACK}:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(grace=None)
        await self._channel.close()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """See ``grpc.GenericRpcHandler``."""
        return grpc.stream_stream_rpc_method_handler(partial(self._pass_on, details.method))

    async def _pass_on(self, method: str, requests: AsyncIterator[bytes], context: Any) -> None:
        async def changed() -> AsyncIterator[bytes]:
            async for message in requests:
                yield await self.asked(method, message)

        call: Any = self._channel.stream_stream(method)(changed(), timeout=context.time_remaining())
        try:
            async for message in call:
                await context.write(await self.answered(method, message))
        except grpc.aio.AioRpcError as error:
            self.refusals.append(f"{error.code()}: {error.details()}")
            await context.abort(error.code(), error.details() or "", error.trailing_metadata())
        finally:
            call.cancel()
