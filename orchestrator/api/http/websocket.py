"""The WebSocket at ``/v1/stream``: a message is the body of a request, and each event of the answer is a message.

A request goes through the HTTP application as if it had come by HTTP, so keys, limits, ids, metrics, errors and slow
readers are what they are there. ``websockets`` reads and writes the frames.
"""

import asyncio
import logging
from functools import partial

from starlette.types import Scope
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from orchestrator.api.http.body import MAX_BODY_BYTES, SMALL_BODY_BYTES, ArrivingBody, beside
from orchestrator.api.http.choice import Body
from orchestrator.api.http.connections import ConnectionBook
from orchestrator.api.http.exchange import Exchange
from orchestrator.api.http.message import asked, is_cancel
from orchestrator.api.http.rendering import to_json
from orchestrator.api.http.transport import LINGER_S, STALL_S, ReadWatch
from specgate.errors import ResourceExhausted
from specgate.rpc.request_id import KEY

PING_S = 20.0
"""Proxies close a connection that has been silent for a minute."""
MAX_SMALL_FRAMES = 1000
"""In a second without a request: pings, cancels, and other frames that cost us more than their sender."""
SMALL_FRAME_BYTES = 125
"""The longest control frame."""
NOT_PASSED_ON = (b"content-length", b"content-type", b"transfer-encoding", KEY.encode())
"""Headers that say something of the handshake alone."""


class StreamSocket(asyncio.Protocol):
    """One connection.

    Args:
        scope: of the request that was answered with 101. Its headers are every request's.
        defaults: fields that requests may leave out.
        body_s: how long a message may take from its first byte to its last.
    """

    def __init__(
        self,
        config: Config,
        scope: Scope,
        defaults: Body,
        state: ServerState,
        book: ConnectionBook,
        body_s: float,
    ) -> None:
        self.address: str = scope["client"][0] if scope["client"] else ""
        self._config, self._scope, self._state, self._book = config, scope, state, book
        self._defaults = to_json(defaults)[1:-1]
        self._body_s = body_s
        self._loop = asyncio.get_running_loop()
        # uvicorn's logger, which logs errors alone.
        logger = logging.getLogger("uvicorn.error")
        self._conn = ServerProtocol(state=State.OPEN, max_size=MAX_BODY_BYTES, logger=logger)
        self._transport: asyncio.Transport
        self._flow: FlowControl
        self._reading = ReadWatch(self._loop)
        self._idle: asyncio.TimerHandle
        self._pings: asyncio.TimerHandle
        self._deadline: asyncio.TimerHandle | None = None
        self._window_began_s, self._num_small_frames = 0.0, 0
        self._message = bytearray()
        self._arriving = ArrivingBody()
        self._running: Exchange | None = None
        self._next: bytes | None = None
        """A request that came before the running one had ended: its client may have seen the last message already."""
        self._is_draining = False
        self._is_leaving = False
        """Our close frame is written. Nothing more is."""

    @property
    def waits_for_client(self) -> bool:
        return self._running is None or self._flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self._flow = transport, FlowControl(transport)
        # HttpServer knows what to call of it.
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._book.admit(self)
        self._pings = self._loop.call_later(PING_S, self._ping)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._book.remove(self)
        self._conn.receive_eof()
        self._forget()
        self._count()
        for timer in (self._reading, self._idle, self._pings):
            timer.cancel()
        self.give_up()
        self._flow.resume_writing()

    def eof_received(self) -> None:
        # Who leaves in order sends a close frame, and waits for ours.
        self.abort()

    def pause_writing(self) -> None:
        self._flow.pause_writing()
        # Who reads nothing shall not make us write more, with pings.
        self._flow.pause_reading()
        self._reading.start(self._transport, STALL_S)

    def resume_writing(self) -> None:
        self._flow.resume_writing()
        self._flow.resume_reading()
        if self._conn.state is State.OPEN:
            self._reading.cancel()

    def shutdown(self) -> None:
        """Take no more requests; called when the server drains."""
        self._is_draining = True
        if self._running is None:
            self._rest()

    def give_up(self) -> None:
        """Report to the application that its client has left. What it still sends is dropped."""
        if self._running is not None:
            self._running.left.set()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._conn.receive_data(data)
        for frame in self._conn.events_received():
            if isinstance(frame, Frame) and self._conn.state is State.OPEN:
                self._take(frame)
        self._watch()
        self._count()
        self._flush()

    def _watch(self) -> None:
        """Give a message that has begun to arrive its time."""
        if not self._conn.reader.buffer and not self._message:
            self._stop_watching()
        elif self._deadline is None and self._conn.state is State.OPEN:
            problem = f"a message was not complete within {self._body_s:g} s"
            close = partial(self._close, CloseCode.POLICY_VIOLATION, problem)
            self._deadline = self._loop.call_later(self._body_s, close)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _count(self) -> None:
        """Count what is held of messages that the application has not taken."""
        parts = (self._conn.reader.buffer, self._message, self._next, self._running and self._running.body)
        num_bytes = 0 if self._conn.state is State.CLOSED else sum(len(part or b"") for part in parts)
        try:
            self._arriving.grow_to(num_bytes)
        except ResourceExhausted as error:
            # A little goes on to the application, which refuses that request alone.
            if num_bytes > SMALL_BODY_BYTES:
                self._close(CloseCode.TRY_AGAIN_LATER, str(error))

    def _forget(self) -> None:
        """Drop what no request becomes of any more."""
        self._stop_watching()
        self._message.clear()
        self._next = None

    def _floods(self, frame: Frame) -> bool:
        if self._loop.time() - self._window_began_s > 1.0:
            self._window_began_s, self._num_small_frames = self._loop.time(), 0
        self._num_small_frames += len(frame.data) <= SMALL_FRAME_BYTES
        return self._num_small_frames > MAX_SMALL_FRAMES

    def _take(self, frame: Frame) -> None:
        if self._floods(frame):
            self._close(CloseCode.POLICY_VIOLATION, f"over {MAX_SMALL_FRAMES} small frames came in a second")
        elif frame.opcode is Opcode.BINARY:
            self._close(CloseCode.UNSUPPORTED_DATA, "a message is JSON in text frames")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._message += frame.data
            if frame.fin:
                message, self._message = bytes(self._message), bytearray()
                self._stop_watching()
                self._begin(message)

    def _begin(self, message: bytes) -> None:
        cancels = is_cancel(message)
        if self._running is not None and cancels:
            self.give_up()
        elif cancels:
            self._conn.send_text(b'{"cancelled":false}')
        elif self._next is not None:
            self._close(CloseCode.POLICY_VIOLATION, "one request runs and one waits")
        elif self._running is not None:
            self._next = message
        else:
            self._idle.cancel()
            self._num_small_frames = 0
            self._running = Exchange(self._write, message, self._count)
            task = self._loop.create_task(self._answer(self._running))
            self._state.tasks.add(task)
            task.add_done_callback(self._state.tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._converse(exchange)
        except BaseException:
            self._close(CloseCode.INTERNAL_ERROR, "an internal error")
            raise
        finally:
            self._rest()

    async def _converse(self, exchange: Exchange) -> None:
        path, own, exchange.body = await beside(partial(asked, self._defaults), exchange.body or b"")
        others = [header for header in self._scope["headers"] if header[0] not in NOT_PASSED_ON]
        headers = [(b"content-type", b"application/json"), *own, *others]
        post = {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
        await exchange.run(self._config.loaded_app, {**self._scope, **post})
        if exchange.complete and exchange.content:
            for text in exchange.whole():
                await self._write(text)
        if exchange.left.is_set():
            await self._write(to_json({"cancelled": not exchange.complete}).encode())
        elif not exchange.complete:
            self._close(CloseCode.POLICY_VIOLATION, "the answer was read too slowly, or broke off")

    def _rest(self) -> None:
        """Begin the request that waits, or wait for one, if there may be one."""
        message, self._running, self._next = self._next, None, None
        if self._is_draining:
            self._close(CloseCode.SERVICE_RESTART, "the gateway is draining")
        elif self._conn.state is not State.OPEN:
            return
        elif message is not None:
            self._begin(message)
        else:
            idle_s = self._config.timeout_keep_alive
            close = partial(self._close, CloseCode.NORMAL_CLOSURE, f"no request for {idle_s} s")
            self._idle = self._loop.call_later(idle_s, close)
        self._count()

    async def _write(self, text: bytes) -> None:
        await self._flow.drain()
        if self._conn.state is State.OPEN:
            self._conn.send_text(text)
            self._flush()

    def _ping(self) -> None:
        if self._conn.state is State.OPEN and not self._flow.write_paused:
            self._conn.send_ping(b"")
            self._flush()
        self._pings = self._loop.call_later(PING_S, self._ping)

    def _close(self, code: CloseCode, reason: str) -> None:
        if self._conn.state is State.OPEN:
            self._conn.send_close(code, reason)
            self._flush()

    def _flush(self) -> None:
        """Write what websockets has to send. Behind a close frame the client has LINGER_S to read it, and to close.

        A socket that is closed with unread bytes is reset, and the client loses the reason.
        """
        data = b"".join(self._conn.data_to_send())
        if not self._is_leaving:
            self._transport.write(data)
        if self._conn.state is not State.OPEN and not self._is_leaving:
            self._is_leaving = True
            self._forget()
            self.give_up()
            self._reading.start(self._transport, LINGER_S)
        if self._conn.close_rcvd is not None:
            self._transport.close()
