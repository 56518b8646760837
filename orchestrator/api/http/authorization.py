"""Keys at the HTTP API: ``Authorization: Bearer KEY`` on all paths but those that say nothing of anybody."""

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.api.http.errors import error_response
from orchestrator.api.http.page import PAGE_PATHS
from orchestrator.api.keys.key_file import Role
from orchestrator.api.keys.keyring import CALLER, Keyring
from specgate.errors import PermissionDenied, Unauthenticated

OPEN = frozenset({"/health", "/healthz", "/readyz", "/version", "/openapi.json", *PAGE_PATHS})
METRICS = "/metrics"
"""How the paths begin that are for keys of the role ``metrics``. All others are for clients."""
HEADER = b"authorization"

_log = logging.getLogger(__name__)


class KeyMiddleware:
    """Refuses requests that show no good key; others run with ``CALLER`` set. Nothing of a refused body is read."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            return await self._app(scope, receive, send)
        shown = next((value.decode("latin-1") for name, value in scope["headers"] if name == HEADER), None)
        role = Role.METRICS if scope["path"].startswith(METRICS) else Role.CLIENT
        try:
            # A server runs each request in a context of its own.
            CALLER.set(self._keyring.caller_of(shown, role))
        except (Unauthenticated, PermissionDenied) as error:
            _log.info("refused: %s", error)
            return await error_response(error)(scope, receive, send)
        await self._app(scope, receive, send)
