"""Server interceptors: handlers just raise, and calls are counted and let in by the server's phase."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from enum import StrEnum
from typing import Any, TypeAlias

import grpc

from specgate.errors import ServiceUnavailable
from specgate.rpc.status import abort

Context = grpc.aio.ServicerContext[Any, Any]
AnyBehaviour = Callable[[Any, Any], Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic for type checkers alone
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"


def rewrap(handler: Handler, wrap: Callable[[AnyBehaviour], Behaviour]) -> Handler:
    """Return ``handler`` with ``wrap`` around its behaviour, an async function or an async generator.

    A unary request is parsed inside ``wrap``: gRPC's own answer to bytes that are no message is UNKNOWN.
    """
    request = "stream" if handler.request_streaming else "unary"
    response = "stream" if handler.response_streaming else "unary"
    make = getattr(grpc, f"{request}_{response}_rpc_method_handler")
    behaviour, parse = getattr(handler, f"{request}_{response}"), handler.request_deserializer
    if parse is not None and not handler.request_streaming:
        behaviour, parse = _parsing(behaviour, parse), None
    wrapped: Handler = make(wrap(behaviour), parse, handler.response_serializer)
    return wrapped


def _parsing(behaviour: AnyBehaviour, parse: Callable[[bytes], Any]) -> AnyBehaviour:
    return lambda raw, context: behaviour(parse(raw), context)


def metadata_of(call: grpc.HandlerCallDetails, key: str) -> str | None:
    """Return the first text that a call's metadata has under ``key``."""
    metadata: Any = call.invocation_metadata or ()
    return next((value for name, value in metadata if name == key and isinstance(value, str)), None)


async def run_handler(behaviour: AnyBehaviour, request: Any, context: Context) -> Any:
    """Run a handler to its end and return its response, if it is a unary one.

    An async generator is closed here, at once: what it holds (a session's KV) must not wait for the garbage
    collector.
    """
    result = behaviour(request, context)
    if not isinstance(result, AsyncGenerator):
        return await result
    async with aclosing(result):
        async for response in result:
            await context.write(response)
    return None


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status. Cancellation passes through, and so does what gRPC itself raises.

    That is the end of an abort, or a write to a client that is gone.
    """

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "Handler | None":
        """Return the handler with its errors translated."""
        handler = await continuation(handler_call_details)
        return None if handler is None else rewrap(handler, self._translated)

    @staticmethod
    def _translated(behaviour: AnyBehaviour) -> Behaviour:
        async def run(request: Any, context: Context) -> Any:
            try:
                return await run_handler(behaviour, request, context)
            except grpc.aio.BaseError:
                raise
            except Exception as error:
                await abort(context, error)

        return run


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the calls of one service. Those of others, such as health and reflection, pass as they are."""

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "Handler | None":
        """Return the handler, wrapped where it is the service's."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        method = handler_call_details.method.removeprefix(self._prefix)
        return rewrap(handler, lambda behaviour: self.wrapped(behaviour, method, handler_call_details))

    def wrapped(self, behaviour: AnyBehaviour, method: str, call: grpc.HandlerCallDetails) -> Behaviour:
        """Return what runs in place of ``behaviour`` in one call of ``method``."""
        raise NotImplementedError


class Phase(StrEnum):
    """Where a server is in its life; only a serving one takes calls."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


class Admission(grpc.aio.ServerInterceptor):
    """Counts the calls of one service, and refuses new ones while the server loads or drains.

    Health and reflection are other services: they are always answered.
    """

    def __init__(self, service: str) -> None:
        self.phase = Phase.LOADING
        self.active = 0
        self._prefix = f"/{service}/"
        self._idle = asyncio.Event()
        self._idle.set()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "Handler | None":
        """Return the handler, counted; before the service is there, one that refuses."""
        handler = await continuation(handler_call_details)
        if not handler_call_details.method.startswith(self._prefix):
            return handler
        if handler is None and self.phase is not Phase.SERVING:
            handler = grpc.stream_stream_rpc_method_handler(_never)
        return None if handler is None else rewrap(handler, self._counted)

    def _counted(self, behaviour: AnyBehaviour) -> Behaviour:
        async def run(request: Any, context: Context) -> Any:
            if self.phase is not Phase.SERVING:
                raise ServiceUnavailable(f"the service is {self.phase}")
            self.active += 1
            self._idle.clear()
            try:
                return await run_handler(behaviour, request, context)
            finally:
                self.active -= 1
                if self.active == 0:
                    self._idle.set()

        return run

    async def wait_idle(self, timeout_s: float) -> bool:
        """Return whether the last call ended within ``timeout_s``."""
        if self._idle.is_set():
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


async def _never(request: Any, context: Context) -> None:
    raise ServiceUnavailable("the service is not there yet")
