"""A span for each call of a service: below the caller's where it sends one, else at the top."""

from typing import Any

import grpc

from specgate import tracing
from specgate.logs import REQUEST_ID
from specgate.rpc.interceptors import (
    AnyBehaviour,
    Behaviour,
    Context,
    Continuation,
    Handler,
    metadata_of,
    rewrap,
    run_handler,
)


class TracingInterceptor(grpc.aio.ServerInterceptor):
    """Runs each call of ``service`` in a span."""

    def __init__(self, service: str) -> None:
        self._service = service

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "Handler | None":
        """Return the handler, which runs in a span."""
        handler = await continuation(handler_call_details)
        prefix = f"/{self._service}/"
        if handler is None or not handler_call_details.method.startswith(prefix):
            return handler
        method = handler_call_details.method.removeprefix(prefix)
        parent = metadata_of(handler_call_details, tracing.KEY)
        return rewrap(handler, lambda behaviour: self._traced(behaviour, method, parent))

    def _traced(self, behaviour: AnyBehaviour, method: str, parent: str | None) -> Behaviour:
        async def run(request: Any, context: Context) -> Any:
            attributes = {
                "rpc.system": "grpc",
                "rpc.service": self._service,
                "rpc.method": method,
                "specgate.request_id": REQUEST_ID.get(),
            }
            with tracing.span(f"{self._service}/{method}", parent, attributes):
                return await run_handler(behaviour, request, context)

        return run
