"""What stands around the HTTP application, outermost first: an id, few headers, a key or a known host, a span."""

import ipaddress
import logging
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.api.http.errors import ApiError, error_response
from orchestrator.api.http.page import PAGE_PATHS
from orchestrator.api.keys.key_file import Role
from orchestrator.api.keys.keyring import ADDRESS, CALLER, Keyring
from specgate import tracing
from specgate.errors import PermissionDenied, Unauthenticated
from specgate.logs import REQUEST_ID
from specgate.rpc.request_id import KEY, given_or_new

MAX_HEADERS = 100
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that machines ask every few seconds, and nobody looks for in a log."""
MAX_LOGGED_CHARACTERS = 128
"""Of a method and a path. A client may send any path."""
OPEN = frozenset({"/health", "/healthz", "/readyz", "/version", "/openapi.json", *PAGE_PATHS})
"""Paths that need no key."""
METRICS = "/metrics"
"""Paths that begin so need a key of the role ``metrics``. All others need a client's."""
LOOPBACK = ("localhost", "*.localhost")
"""Browsers ask no name server for these names."""
OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat", "/v1/responses": "chat"}
"""GenAI's name of what each path does. Other paths are not traced."""

_log = logging.getLogger(__name__)


class RequestIdMiddleware:
    """Gives each request its id: the client's ``x-request-id`` or a new one.

    All logs of the request and its answer have it. One log line says what the request came to.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = given_or_new(_header(scope, KEY))
        # It stays set: a server runs each request in a context of its own, and may log of it afterwards.
        REQUEST_ID.set(request_id)
        ADDRESS.set(scope["client"][0] if scope.get("client") else "")
        outcome, start_s = "no answer", time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal outcome
            if message["type"] == "http.response.start":
                outcome = str(message["status"])
                message = {**message, "headers": [*message.get("headers", ()), (KEY.encode(), request_id.encode())]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if scope["path"] not in QUIET:
                # Without the query: a key that a client sends there is not logged.
                asked = f"{scope['method']} {scope['path']}"[:MAX_LOGGED_CHARACTERS]
                _log.info("%s: %s after %.3f s", asked, outcome, time.perf_counter() - start_s)


def with_few_headers(app: ASGIApp) -> ASGIApp:
    """Return ``app`` behind a limit on the number of a request's headers."""

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or len(scope["headers"]) <= MAX_HEADERS:
            return await app(scope, receive, send)
        problem = f"the request has {len(scope['headers'])} headers; {MAX_HEADERS} are the most"
        await error_response(ApiError(431, problem))(scope, receive, send)

    return bounded


class KeyMiddleware:
    """Refuses requests that show no good key. Others run with ``CALLER`` set. No body of a refused request is read."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            return await self._app(scope, receive, send)
        role = Role.METRICS if scope["path"].startswith(METRICS) else Role.CLIENT
        try:
            # A server runs each request in a context of its own.
            CALLER.set(self._keyring.caller_of(_header(scope, "authorization"), role))
        except (Unauthenticated, PermissionDenied) as error:
            _log.info("refused: %s", error)
            return await error_response(error)(scope, receive, send)
        await self._app(scope, receive, send)


class HostMiddleware:
    """Refuses requests to other names than loopback's and those of ``hosts``, with 421, where no keys are needed.

    A web page may make its own name lead to this machine (DNS rebinding). Its reader's browser then takes this server
    for the page's own, shows the page every answer, and asks for no permission. Such a request has the page's name in
    ``Host``. Any IP address passes, and so does a request without the header: rebinding needs a name, and browsers send
    it.

    Args:
        hosts: names without ports; ``*`` stands for any characters.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._patterns = [*LOOPBACK, *(host.lower().removesuffix(".") for host in hosts)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = _header(scope, "host")
        if host is None or self._is_known(host):
            return await self._app(scope, receive, send)
        problem = f"the Host header {host!r} names no host of this server; gateway.http.hosts lists those that do"
        _log.info("refused: %s", problem)
        await error_response(ApiError(421, problem, code="unknown_host"))(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return _is_ip(name) or any(fnmatchcase(name.removesuffix("."), pattern) for pattern in self._patterns)


class TracingMiddleware:
    """Runs each request that generates in a span, below the client's where it sends a ``traceparent``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = OPERATIONS.get(scope["path"]) if scope["type"] == "http" else None
        if operation is None:
            return await self._app(scope, receive, send)
        attributes = {
            "http.request.method": scope["method"],
            "http.route": scope["path"],
            "gen_ai.operation.name": operation,
            "specgate.request_id": REQUEST_ID.get(),
        }
        name = f"{scope['method']} {scope['path']}"
        with tracing.span(name, tracing.given(scope["headers"]), attributes) as span:

            async def send_with_status(message: Message) -> None:
                if span is not None and message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, send_with_status)


def _header(scope: Scope, name: str) -> str | None:
    return next((value.decode("latin-1") for key, value in scope.get("headers", ()) if key == name.encode()), None)


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
