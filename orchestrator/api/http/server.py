"""The HTTP API's server: uvicorn's protocol on sockets of our own, in every gateway replica.

Ray Serve's proxy has one time limit, for idle connections, and buffers everything for a client that does not read. Here
a slow reader slows its own request only.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from orchestrator.api.http.connections import ConnectionBook
from orchestrator.api.http.protocol import Deadlines, TimedProtocol
from orchestrator.api.http.transport import LINGER_S
from orchestrator.api.http.websocket import StreamSocket
from orchestrator.api.settings.listen import HttpSettings
from specgate.errors import InvalidArgument
from specgate.rpc.endpoint import join_endpoint
from specgate.rpc.tls import TlsFiles, server_context

MAX_HEAD_BYTES = 32 << 10
BACKLOG = 1024
SEND_BUFFER_BYTES = 64 << 10
"""What the kernel buffers of an answer before it is read. By default that grows to megabytes: whole answers."""
FLUSH_S = 1.0
"""How long the last bytes of aborted answers may take."""

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class HttpServer:
    """One listening server over an ASGI application, from ``start`` to ``drain``.

    Args:
        deadlines: how long clients may take to send a request.
        reuse_port: share the port with other replicas on this node.
    """

    def __init__(
        self, app: App, settings: HttpSettings, deadlines: Deadlines = Deadlines(), *, reuse_port: bool = False
    ) -> None:
        self._settings = settings
        self._reuse_port = reuse_port
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=settings.idle_timeout_s,
        )
        self._state = ServerState()
        self._book = ConnectionBook(settings.max_connections)
        self._deadlines = deadlines
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """HOST:PORT as bound."""
        return join_endpoint(self._settings.host, self._port)

    @property
    def num_connections(self) -> int:
        """Connections that are open."""
        return len(self._state.connections)

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            InvalidArgument: the port cannot be bound, or a TLS file cannot be used.
        """
        files = self._settings.tls
        tls = None if files is None else server_context(TlsFiles(files.certificate, files.key, files.client_ca))
        listener = self._bind()
        self._port = listener.getsockname()[1]
        self._config.load()
        make = partial(TimedProtocol, self._config, self._state, self._deadlines, self._book)
        # A handshake has the time of a head.
        handshake_s, shutdown_s = (None, None) if tls is None else (self._deadlines.head_s, LINGER_S)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            make,
            sock=listener,
            ssl=tls,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=shutdown_s,
            backlog=BACKLOG,
        )

    def _bind(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        listener = socket.socket(self._settings.family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(self._reuse_port))
            # Connections inherit it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            raise InvalidArgument("port", f"{port} on {host} cannot be bound: {error.strerror}") from None
        return listener

    async def drain(self, timeout_s: float) -> None:
        """Listen no more, let running requests end within ``timeout_s`` seconds, cut off the rest.

        Safe to call twice.
        """
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections():
            connection.shutdown()
        await self._wait_closed(timeout_s)
        for connection in self._connections():
            connection.give_up()
        await self._wait_closed(FLUSH_S)
        for connection in self._connections():
            connection.abort()

    def _connections(self) -> list[TimedProtocol | StreamSocket]:
        return [one for one in self._state.connections if isinstance(one, TimedProtocol | StreamSocket)]

    async def _wait_closed(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._state.connections or self._state.tasks:  # noqa: ASYNC110 - uvicorn's plain sets
                    await asyncio.sleep(0.05)
