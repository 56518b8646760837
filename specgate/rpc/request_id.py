"""One id a request, from the door to both services: the metadata ``x-request-id`` of every call."""

import logging
import re
import secrets
import time
from typing import Any

import grpc

from specgate import tracing
from specgate.logs import REQUEST_ID
from specgate.rpc.interceptors import AnyBehaviour, Behaviour, Context, ServiceInterceptor, metadata_of, run_handler

KEY = "x-request-id"
"""Of gRPC metadata, and of HTTP's headers."""
ID_BYTES = 8
_VALID = re.compile(r"[\x21-\x7e]{1,128}")

_log = logging.getLogger(__name__)


def given_or_new(given: str | None) -> str:
    """Return a client's id for its request; a new one where it gave none, or one that is not 1 to 128 visible ASCII
    characters.
    """
    return given if given is not None and _VALID.fullmatch(given) else secrets.token_hex(ID_BYTES)


def outgoing() -> tuple[tuple[str, str], ...]:
    """Return the metadata for a call that is made for the request of the running task."""
    request_id = REQUEST_ID.get()
    return (((KEY, request_id),) if request_id else ()) + tracing.outgoing()


class RequestIdInterceptor(ServiceInterceptor):
    """Gives each call of ``service`` its id, sends it back in the initial metadata, and logs how long the call took."""

    def wrapped(self, behaviour: AnyBehaviour, method: str, call: grpc.HandlerCallDetails) -> Behaviour:
        """Return what runs under the call's id."""
        return _identified(behaviour, given_or_new(metadata_of(call, KEY)), method)


def _identified(behaviour: AnyBehaviour, request_id: str, method: str) -> Behaviour:
    async def run(request: Any, context: Context) -> Any:
        # gRPC runs each call in a task of its own; its context ends with it.
        REQUEST_ID.set(request_id)
        # Unless it comes to an answer or an error: the client has ended the call, which is how it ends a session.
        start_s, outcome = time.perf_counter(), "closed"
        try:
            await context.send_initial_metadata(((KEY, request_id),))
            response = await run_handler(behaviour, request, context)
            outcome = "OK"
            return response
        except grpc.aio.AbortError:
            outcome = getattr(context.code(), "name", "UNKNOWN")
            raise
        finally:
            _log.info("%s: %s after %.3f s", method, outcome, time.perf_counter() - start_s)

    return run
