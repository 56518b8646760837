"""The id of every HTTP request: the client's ``x-request-id`` or a new one, in all logs of it and in its answer.

And the address that it comes from.
"""

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.api.keys.client import ADDRESS
from specgate.logs import REQUEST_ID
from specgate.rpc.request_id import KEY, given_or_new

HEADER = KEY.encode()
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""What machines ask every few seconds, and nobody looks for in a log."""
MAX_CHARACTERS = 128

_log = logging.getLogger(__name__)


class RequestIdMiddleware:
    """Wraps a whole application, with what turns errors into answers, and logs what each request came to."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((value.decode("latin-1") for key, value in scope["headers"] if key == HEADER), None)
        request_id = given_or_new(given)
        # It stays set: a server runs each request in a context of its own, and may log of it afterwards.
        REQUEST_ID.set(request_id)
        ADDRESS.set(scope["client"][0] if scope.get("client") else "")
        outcome, start_s = "no answer", time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal outcome
            if message["type"] == "http.response.start":
                outcome = str(message["status"])
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, request_id.encode())]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if scope["path"] not in QUIET:
                # Not the query: who sends a key there does not find it in a log.
                asked = f"{scope['method']} {scope['path']}"[:MAX_CHARACTERS]
                _log.info("%s: %s after %.3f s", asked, outcome, time.perf_counter() - start_s)
