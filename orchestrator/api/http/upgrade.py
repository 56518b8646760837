"""``GET /v1/stream``: whether a connection may become a WebSocket. ``StreamSocket`` is what it becomes."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from starlette.types import Scope
from websockets import http11
from websockets.datastructures import Headers
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from orchestrator.api.http.errors import ApiError
from orchestrator.api.http.rendering import to_json

STREAM = "/v1/stream"
SUBPROTOCOL = Subprotocol("specgate")
BEARER = "bearer."
"""A subprotocol that begins so carries a key: in browsers a page cannot set a WebSocket's headers."""


def add_stream(app: FastAPI, hosts: Sequence[str], model_name: str) -> None:
    """Put the question into ``app``. The answer 101 is yes, and has what requests may leave out.

    Args:
        hosts: whose pages may ask, beside this server's own; ``*`` stands for any characters. ``*`` alone lists
            nobody: who answers to any name does not trust any page.
    """

    @app.get(STREAM)
    async def stream(request: Request) -> Response:
        if STREAM not in request.scope.get("extensions", {}):
            error = ApiError(426, "this path is for WebSockets")
            error.headers = {"Upgrade": "websocket"}
            raise error
        origin = request.headers.get("origin")
        if origin is not None and not _is_known(origin, request.headers.get("host"), hosts):
            problem = f"a page of {origin!r} may not ask; gateway.http.hosts lists the hosts whose pages may"
            raise ApiError(403, problem, code="foreign_origin")
        return Response(to_json({"model": model_name, "stream": True}), 101)


def _is_known(origin: str, host: str | None, hosts: Sequence[str]) -> bool:
    try:
        parts = urlsplit(origin)
        name = (parts.hostname or "").removesuffix(".")
    except ValueError:
        return False
    patterns = [host.lower().removesuffix(".") for host in hosts if host.strip("*")]
    return parts.netloc == host or any(fnmatchcase(name, pattern) for pattern in patterns)


def asking(scope: Scope) -> Scope:
    """Return the scope of a GET that asks, with the key of a subprotocol in the header that keys are read from."""
    keys = [one.removeprefix(BEARER) for one in _subprotocols(scope) if one.startswith(BEARER)]
    headers = [(b"authorization", f"Bearer {key}".encode("latin-1")) for key in keys]
    return {**scope, "headers": [*scope["headers"], *headers], "extensions": {STREAM: {}}}


def handshake(scope: Scope) -> http11.Response:
    """Return websockets' answer to the request of ``scope``: 101, or what is wrong with it."""
    chosen = SUBPROTOCOL if SUBPROTOCOL in _subprotocols(scope) else None
    headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]])
    request = http11.Request(scope["path"], headers, scope["method"], f"HTTP/{scope['http_version']}")
    return ServerProtocol(select_subprotocol=lambda *_: chosen).accept(request)


def _subprotocols(scope: Scope) -> Iterator[str]:
    for name, value in scope["headers"]:
        if name == b"sec-websocket-protocol":
            yield from (one.strip() for one in value.decode("latin-1").split(","))
