"""uvicorn's HTTP/1.1 connection with deadlines for whole heads and bodies, and a limit on connections.

uvicorn has a keep-alive time only: a client that sends half of a request, or reads no answer, holds its connection for
ever.
"""

import asyncio
import json
import logging
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from orchestrator.api.http.connections import ConnectionBook
from orchestrator.api.http.errors import ApiError, error_body
from orchestrator.api.http.exchange import Exchange
from orchestrator.api.http.transport import LINGER_S, STALL_S, EndedByUs, ReadWatch
from orchestrator.api.http.upgrade import STREAM, asking, handshake
from orchestrator.api.http.websocket import StreamSocket
from specgate.rpc.request_id import KEY, given_or_new

MAX_PIPELINED_BYTES = 32 << 10
"""Of requests that a client sends while an earlier one is answered."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds from the first byte of a head to its last, and from the end of a head to the last byte of its body.

    A head fits into a few packets. A body of a megabyte arrives in time at 35 kB/s.
    """

    head_s: float = 10.0
    body_s: float = 30.0


class ConnectionPhase(StrEnum):
    """What a connection waits for its client to do."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    NOTHING = "nothing"
    """A request is being answered."""
    UPGRADE = "upgrade"
    """The application is asked whether there may be a WebSocket."""
    ENDING = "ending"
    """Our side has ended: what is written is still sent, what arrives is thrown away."""


class TimedProtocol(H11Protocol):
    """One connection.

    Args:
        book: admits the connection.
    """

    def __init__(self, config: Config, server_state: ServerState, deadlines: Deadlines, book: ConnectionBook) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self.address = ""
        self._deadlines = deadlines
        self._book = book
        self._socket: asyncio.Transport
        self._phase = ConnectionPhase.NOTHING
        self._timer: asyncio.TimerHandle | None = None
        self._reading = ReadWatch(self.loop)
        self._pipelined = bytearray()

    @property
    def waits_for_client(self) -> bool:
        return self._phase is not ConnectionPhase.NOTHING or self.flow.write_paused

    def abort(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        # It is all that uvicorn needs of a transport.
        super().connection_made(EndedByUs(transport, self._end))  # type: ignore[arg-type]
        self.address = self.client[0] if self.client else ""
        if self._book.admit(self):
            self._enter(ConnectionPhase.HEAD)
        else:
            self._answer(503, "this address, or all of them together, has as many connections as it may have")
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._book.remove(self)
        self._enter(ConnectionPhase.ENDING)
        self._reading.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase is ConnectionPhase.ENDING:
            return
        if self._phase in (ConnectionPhase.NOTHING, ConnectionPhase.UPGRADE):
            self._pipeline(data)
            return
        super().data_received(data)
        self._follow()

    def _pipeline(self, data: bytes) -> None:
        """Keep what arrives while a request is answered. uvicorn would stop reading, and not see the client leave."""
        self._pipelined += data
        if len(self._pipelined) > MAX_PIPELINED_BYTES:
            self.abort()

    def on_response_complete(self) -> None:
        """Called by uvicorn when a response has been written."""
        unread_body = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread_body:
            self._end()
        self._follow()
        if self._pipelined and self._phase in (ConnectionPhase.IDLE, ConnectionPhase.HEAD):
            data = bytes(self._pipelined)
            self._pipelined.clear()
            self.data_received(data)

    def shutdown(self) -> None:
        """Take no more requests; called when the server drains."""
        if self._phase in (ConnectionPhase.BODY, ConnectionPhase.UPGRADE):
            self._refuse(503, "the gateway is draining")
        elif self._phase is not ConnectionPhase.ENDING:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading.start(self._socket, STALL_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._phase is not ConnectionPhase.ENDING:
            self._reading.cancel()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is not HTTP. h11's error has the status."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        self._refuse(status, "this is no HTTP/1.1 request, or its head is too long")

    def _follow(self) -> None:
        """Enter the phase that follows from HTTP's own state."""
        if self._phase in (ConnectionPhase.UPGRADE, ConnectionPhase.ENDING) or self.transport.is_closing():
            return
        theirs = self.conn.their_state
        if theirs is h11.IDLE:
            self._enter(ConnectionPhase.HEAD if self.conn.trailing_data[0] else ConnectionPhase.IDLE)
        elif theirs is h11.SEND_BODY:
            self._enter(ConnectionPhase.BODY)
        else:
            self._enter(ConnectionPhase.NOTHING)
            self.flow.resume_reading()

    def _enter(self, phase: ConnectionPhase) -> None:
        if phase is self._phase:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._phase = phase
        if phase in (ConnectionPhase.HEAD, ConnectionPhase.BODY):
            limit_s = self._deadlines.head_s if phase is ConnectionPhase.HEAD else self._deadlines.body_s
            self._timer = self.loop.call_later(limit_s, self._expire, limit_s)

    def _expire(self, limit_s: float) -> None:
        if self._phase is ConnectionPhase.HEAD and not self.conn.trailing_data[0]:
            # The client connected early, and sent no request.
            self._end()
        else:
            self._refuse(408, f"the request's {self._phase} was not complete within {limit_s:g} s")

    def _refuse(self, status: int, problem: str) -> None:
        """Send a refusal, unless an answer is on its way; then end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(status, problem)
        self.give_up()
        self._end()

    def give_up(self) -> None:
        """Report to the application that its client has left. What the application still sends is dropped."""
        # uvicorn declares it as never None; it is None before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _should_upgrade_to_ws(self) -> bool:
        """Called by uvicorn. At other paths a request for a WebSocket is answered as any request."""
        return self.scope["path"] == STREAM

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Called by uvicorn, in place of starting an answer."""
        self._enter(ConnectionPhase.UPGRADE)
        task = self.loop.create_task(self._upgrade())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _upgrade(self) -> None:
        """Make a ``StreamSocket`` of the connection if the application says so; else send what it says."""
        scope, exchange = asking(dict(self.scope)), Exchange()
        await exchange.run(self.app, dict(scope))
        if self._phase is not ConnectionPhase.UPGRADE:
            return
        if exchange.status != 101:
            self._write(exchange.status, exchange.headers, exchange.content)
            return self._end()
        answer = handshake(scope)
        if answer.status_code != 101:
            return self._refuse(answer.status_code, (answer.body or b"").decode().strip())
        answer.headers.update((name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.headers)
        self._enter(ConnectionPhase.ENDING)
        self._reading.cancel()
        self._book.remove(self)
        self.connections.discard(self)
        defaults = json.loads(exchange.content)
        body_s = self._deadlines.body_s
        socket = StreamSocket(self.config, scope, defaults, self.server_state, self._book, body_s)
        self._socket.write(answer.serialize())
        self._socket.set_protocol(socket)
        socket.connection_made(self._socket)
        socket.data_received(self.conn.trailing_data[0] + self._pipelined)

    def _answer(self, status: int, problem: str) -> None:
        """Write a whole refusal, in the API's form."""
        request_id = given_or_new(self._given_id())
        _log.info("%s is refused with %d, request id %s: %s", self.address, status, request_id, problem)
        body = error_body(ApiError(status, problem))
        body["error"]["request_id"] = request_id
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content)), KEY: request_id}
        self._write(status, list(headers.items()), content)

    def _write(self, status: int, headers: list[Any], content: bytes) -> None:
        """Write a whole answer, the connection's last one."""
        headers = [*headers, ("connection", "close")]
        response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (response, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _given_id(self) -> str | None:
        """Return the client's id for its request, if its head has arrived and has one."""
        if self._phase is not ConnectionPhase.BODY:
            return None
        return next((value.decode("latin-1") for name, value in self.headers if name == KEY.encode()), None)

    def _end(self) -> None:
        """End our side. The client receives what is written, and has time to stop sending.

        A socket that is closed with unread bytes is reset, and the client loses the answer.
        """
        if self._phase is ConnectionPhase.ENDING or self._socket.is_closing():
            return
        sends_head = self._phase is ConnectionPhase.HEAD and self.conn.trailing_data[0]
        still_sends = sends_head or self._phase is ConnectionPhase.BODY or self.conn.their_state is h11.SEND_BODY
        self._unset_keepalive_if_required()
        self._enter(ConnectionPhase.ENDING)
        self._reading.start(self._socket, LINGER_S if still_sends else STALL_S)
        if not still_sends:
            self._socket.close()
            return
        self.flow.resume_reading()
        if self._socket.can_write_eof():
            self._socket.write_eof()
