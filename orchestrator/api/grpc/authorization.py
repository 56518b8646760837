"""Keys at the gRPC API: the metadata ``authorization`` of its calls. Health and reflection are open."""

from typing import Any

import grpc

from orchestrator.api.keys.keyring import CALLER, Keyring
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

KEY = "authorization"


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of ``service`` that show no good key; others run with ``CALLER`` set."""

    def __init__(self, service: str, keyring: Keyring) -> None:
        self._prefix = f"/{service}/"
        self._keyring = keyring

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "Handler | None":
        """Return the handler, which asks for the key before it reads the request."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        shown = metadata_of(handler_call_details, KEY)
        return rewrap(handler, lambda behaviour: self._checked(behaviour, shown))

    def _checked(self, behaviour: AnyBehaviour, shown: str | None) -> Behaviour:
        async def run(request: Any, context: Context) -> Any:
            # gRPC runs each call in a task of its own, whose context ends with it.
            CALLER.set(self._keyring.caller_of(shown))
            return await run_handler(behaviour, request, context)

        return run
