"""uvicorn's HTTP/1.1 connection with what it leaves out: deadlines for whole heads and bodies, and a count of itself.

uvicorn has a keep-alive time and nothing else: a client that sends half of a request holds its connection for ever.
"""

import asyncio
import json
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

LINGER_S = 5.0
"""After the last answer of a connection its client gets so long to read it, before the connection is broken."""

STALL_S = 30.0
"""How long a client may take nothing of an answer. Streams have a stricter rule of their own."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds from the first byte of a head to its last, and from the end of a head to the last byte of its body."""

    head_s: float
    body_s: float


class Phase(StrEnum):
    """What a connection waits for its client to do."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    NOTHING = "nothing"
    """A request is being answered."""
    LINGER = "linger"
    """Our side has ended: what the client still sends is thrown away."""


class TimedProtocol(H11Protocol):
    """One connection.

    Args:
        book: who admits it.
    """

    def __init__(self, config: Config, server_state: ServerState, deadlines: Deadlines, book: ConnectionBook) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self.address = ""
        self._deadlines = deadlines
        self._book = book
        self._phase = Phase.NOTHING
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    @property
    def waits_for_client(self) -> bool:
        """See ``connections.Connection``."""
        return self._phase is not Phase.NOTHING

    def abort(self) -> None:
        """See ``connections.Connection``."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self._book.admit(self):
            self._enter(Phase.HEAD)
        else:
            self._refuse(503, "this address, or all of them together, has as many connections as it may have")

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._book.remove(self)
        self._enter(Phase.NOTHING)
        self._unset_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        if self._phase is Phase.LINGER:
            return
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Called by uvicorn when a response has been written."""
        unread_body = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if self.transport.is_closing():
            # A client that does not read must not keep what is closed.
            self._enter(Phase.LINGER)
        elif unread_body:
            self._linger()
        else:
            self._follow()

    def timeout_keep_alive_handler(self) -> None:
        """Called by uvicorn where no other request came."""
        if not self.transport.is_closing():
            self._linger()

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        super().pause_writing()
        self._stall = self.loop.call_later(STALL_S, self.abort)

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        super().resume_writing()
        self._unset_stall()

    def _unset_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is no HTTP; h11's error says more."""
        error = sys.exception() if sys.version_info >= (3, 12) else sys.exc_info()[1]
        self._refuse(getattr(error, "error_status_hint", 400), "this is no HTTP/1.1 request, or its head is too long")

    def _follow(self) -> None:
        """Enter the phase that HTTP's own state says."""
        if self._phase is Phase.LINGER or self.transport.is_closing():
            return
        theirs = self.conn.their_state
        if theirs is h11.IDLE:
            self._enter(Phase.HEAD if self.conn.trailing_data[0] else Phase.IDLE)
        else:
            self._enter(Phase.BODY if theirs is h11.SEND_BODY else Phase.NOTHING)

    def _enter(self, phase: Phase) -> None:
        if phase is self._phase:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._phase = phase
        limits = {Phase.HEAD: self._deadlines.head_s, Phase.BODY: self._deadlines.body_s, Phase.LINGER: LINGER_S}
        if phase in limits:
            self._timer = self.loop.call_later(limits[phase], self._expire)

    def _expire(self) -> None:
        if self._phase is Phase.LINGER:
            self.transport.abort()
            return
        if self._phase is Phase.HEAD and not self.conn.trailing_data[0]:
            # Connected ahead of a request that never came.
            self.transport.close()
            return
        limit_s = self._deadlines.head_s if self._phase is Phase.HEAD else self._deadlines.body_s
        self._refuse(408, f"the request's {self._phase} was not complete within {limit_s:g} s")

    def _refuse(self, status: int, problem: str) -> None:
        """Answer by ourselves, in the API's words, unless an answer is under way; then end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(status, error_body(ApiError(status, problem)))
        self.give_up()
        self._linger()

    def give_up(self) -> None:
        """Tell the application that its client has left; what it still sends goes nowhere."""
        # uvicorn declares it as always there; it is None before the first request.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (response, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _linger(self) -> None:
        """End our side, and take what the client still sends for a moment.

        A socket that is closed over unread bytes is reset, and the client loses the answer.
        """
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self._enter(Phase.LINGER)
        if self.transport.can_write_eof():
            self.transport.write_eof()
