"""Which ``Host`` headers a door without keys answers: those that no page of elsewhere can bring.

A web page may have its own name lead to this machine (DNS rebinding): its reader's browser then asks this server as the
page's own, shows it every answer, and asks for no permission. Such a request has the page's name in ``Host``.
"""

import ipaddress
import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.api.http.errors import ApiError, error_response

LOOPBACK = ("localhost", "*.localhost")
"""Browsers ask no name server for them."""
HEADER = b"host"

_log = logging.getLogger(__name__)


class HostMiddleware:
    """Refuses requests to other names than loopback's and those of ``hosts``, with 421. Nothing of a body is read.

    Any IP address is let in, and so is a request without the header: rebinding needs a name, and browsers send it.

    Args:
        hosts: names without ports; ``*`` stands for any characters.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._patterns = [*LOOPBACK, *(host.lower().removesuffix(".") for host in hosts)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        shown = next((value.decode("latin-1") for name, value in scope.get("headers", ()) if name == HEADER), None)
        if shown is None or self._is_known(shown):
            return await self._app(scope, receive, send)
        problem = f"the Host header {shown!r} names no host of this server; gateway.http.hosts lists those that do"
        _log.info("refused: %s", problem)
        await error_response(ApiError(421, problem, code="unknown_host"))(scope, receive, send)

    def _is_known(self, shown: str) -> bool:
        try:
            name = urlsplit(f"//{shown}").hostname or ""
        except ValueError:
            return False
        return _is_ip(name) or any(fnmatchcase(name.removesuffix("."), pattern) for pattern in self._patterns)


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
