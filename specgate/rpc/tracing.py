"""A span for each call of a service: below the caller's where it sends one, else at the top."""

from typing import Any

import grpc

from specgate import tracing
from specgate.logs import REQUEST_ID
from specgate.rpc.interceptors import AnyBehaviour, Behaviour, Context, ServiceInterceptor, metadata_of, run_handler


class TracingInterceptor(ServiceInterceptor):
    """Runs each call of ``service`` in a span."""

    def __init__(self, service: str) -> None:
        super().__init__(service)
        self._service = service

    def wrapped(self, behaviour: AnyBehaviour, method: str, call: grpc.HandlerCallDetails) -> Behaviour:
        """Return what runs in a span."""
        parent = metadata_of(call, tracing.KEY)

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
