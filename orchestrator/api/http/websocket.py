"""The WebSocket at ``/v1/stream``: a message is the body of a request, and each event of the answer is a message.

A request goes through the HTTP application as if it had come by HTTP, so keys, limits, ids, metrics, errors and slow
readers are what they are there. ``websockets`` reads and writes the frames.
"""

import asyncio
import logging
from functools import partial
from typing import Any

from pydantic_core import from_json
from starlette.types import Scope
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from orchestrator.api.http.body import MAX_BODY_BYTES, ArrivingBody, beside
from orchestrator.api.http.choice import Body
from orchestrator.api.http.connections import ConnectionBook
from orchestrator.api.http.exchange import Exchange
from orchestrator.api.http.rendering import to_json
from orchestrator.api.http.transport import LINGER_S, STALL_S, ReadWatch
from specgate.errors import ResourceExhausted
from specgate.rpc.request_id import KEY

PING_S = 20.0
"""Proxies close a connection that has been silent for a minute."""
MAX_CANCEL_BYTES = 64
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class StreamSocket(asyncio.Protocol):
    """One connection.

    Args:
        scope: of the request that was answered with 101. Its headers are every request's.
        defaults: fields that requests may leave out.
    """

    def __init__(self, config: Config, scope: Scope, defaults: Body, state: ServerState, book: ConnectionBook) -> None:
        self.address: str = scope["client"][0] if scope["client"] else ""
        self._config, self._scope, self._defaults, self._state, self._book = config, scope, defaults, state, book
        self._loop = asyncio.get_running_loop()
        # uvicorn's logger, which logs errors alone.
        logger = logging.getLogger("uvicorn.error")
        self._conn = ServerProtocol(state=State.OPEN, max_size=MAX_BODY_BYTES, logger=logger)
        self._transport: asyncio.Transport
        self._flow: FlowControl
        self._reading = ReadWatch(self._loop)
        self._idle: asyncio.TimerHandle
        self._pings: asyncio.TimerHandle
        self._message = bytearray()
        self._arriving = ArrivingBody()
        self._running: Exchange | None = None
        self._next: bytes | None = None
        """A request that came before the running one had ended: its client may have seen the last message already."""
        self._is_draining = False

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
        self._arriving.grow_to(0)
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
        try:
            self._arriving.grow_to(len(self._conn.reader.buffer) + len(self._message) + len(self._next or b""))
        except ResourceExhausted as error:
            self._close(CloseCode.TRY_AGAIN_LATER, str(error))
        self._flush()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self._close(CloseCode.UNSUPPORTED_DATA, "a message is JSON in text frames")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._message += frame.data
            if frame.fin:
                message, self._message = bytes(self._message), bytearray()
                self._begin(message)

    def _begin(self, message: bytes) -> None:
        cancels = len(message) <= MAX_CANCEL_BYTES and _fields(message) == {"cancel": True}
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
            self._running = Exchange(self._write)
            task = self._loop.create_task(self._answer(self._running, message))
            self._state.tasks.add(task)
            task.add_done_callback(self._state.tasks.discard)

    async def _answer(self, exchange: Exchange, message: bytes) -> None:
        path, headers, body = await beside(partial(_asked, self._defaults), message)
        headers = [(b"content-type", b"application/json"), *headers, *self._scope["headers"]]
        post = {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
        await exchange.run(self._config.loaded_app, {**self._scope, **post}, body)
        if exchange.complete and exchange.content:
            for text in exchange.whole():
                await self._write(text)
        if exchange.left.is_set():
            await self._write(to_json({"cancelled": not exchange.complete}).encode())
        elif not exchange.complete:
            self._close(CloseCode.POLICY_VIOLATION, "the answer was read too slowly, or broke off")
        self._rest()

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
        self._transport.write(data)
        if self._conn.state is not State.OPEN and data:
            self.give_up()
            self._reading.start(self._transport, LINGER_S)
        if self._conn.close_rcvd is not None:
            self._transport.close()


def _asked(defaults: Body, message: bytes) -> tuple[str, list[tuple[bytes, bytes]], bytes]:
    """Return a request's path, its own headers and its body.

    What is no object goes on as it is: the application says what is wrong with it.
    """
    fields = _fields(message)
    if not isinstance(fields, dict):
        return COMPLETIONS, [], message
    path = CHAT if "messages" in fields else COMPLETIONS
    request_id = [(KEY.encode(), fields.pop("id").encode())] if isinstance(fields.get("id"), str) else []
    try:
        return path, request_id, to_json({**defaults, **fields}).encode()
    except ValueError:
        # Of 1e999, which Python reads as infinity.
        return path, request_id, message


def _fields(message: bytes) -> Any:
    try:
        return from_json(message, allow_inf_nan=False)
    except ValueError:
        return None
