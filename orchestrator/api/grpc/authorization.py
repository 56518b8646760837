"""Keys at the gRPC API: the metadata ``authorization`` of its calls. Health and reflection are open."""

from typing import Any

import grpc

from orchestrator.api.keys.keyring import CALLER, Keyring
from specgate.rpc.interceptors import AnyBehaviour, Behaviour, Context, ServiceInterceptor, metadata_of, run_handler

KEY = "authorization"


class KeyInterceptor(ServiceInterceptor):
    """Refuses calls of ``service`` that show no good key; others run with ``CALLER`` set."""

    def __init__(self, service: str, keyring: Keyring) -> None:
        super().__init__(service)
        self._keyring = keyring

    def wrapped(self, behaviour: AnyBehaviour, method: str, call: grpc.HandlerCallDetails) -> Behaviour:
        """Return what asks for the key before it reads the request."""
        shown = metadata_of(call, KEY)

        async def run(request: Any, context: Context) -> Any:
            # gRPC runs each call in a task of its own, whose context ends with it.
            CALLER.set(self._keyring.caller_of(shown))
            return await run_handler(behaviour, request, context)

        return run
