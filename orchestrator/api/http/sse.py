"""Server-sent events to one reader, who may be slow and may leave."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Self

from starlette.types import Receive, Send

from orchestrator.api.read_pace import ReaderTooSlow, ReadPace

HEARTBEAT_S = 5.0
"""An idle stream sends a comment this often, so that no proxy takes the connection for dead."""
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
"""The last one keeps nginx from buffering events."""


def event_of(content: Mapping[str, Any], json_of: Callable[[Any], str]) -> bytes:
    """Return the event with ``content`` as JSON. A ``type`` in it is the event's name, too."""
    name = f"event: {content['type']}\n" if "type" in content else ""
    return f"{name}data: {json_of(content)}\n\n".encode()


class ReaderLost(Exception):
    """The reader was too slow, or its connection broke."""


class EventWriter:
    """Writes events. The response begins with the first one. As a context it sends heartbeats while events are rare.

    Args:
        pace: how slowly they may be read.
    """

    def __init__(self, send: Send, pace: ReadPace) -> None:
        self._send = send
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._wrote_at_s = self._loop.time()
        self._writing = asyncio.Lock()
        self._heart: asyncio.Task[None] | None = None
        self.started = False
        """Whether the status has been sent. A later failure must be sent as an event."""

    async def write(self, event: bytes, num_tokens: int = 0, *, more: bool = True) -> None:
        """Send ``event``, which has ``num_tokens`` tokens. Return once the connection has room for more.

        Raises:
            ReaderLost: it was not read.
        """
        try:
            async with self._writing:
                await self._pace.write(self._emit(event, more=more), num_tokens)
        except (ReaderTooSlow, OSError) as error:
            raise ReaderLost(str(error) or "the connection broke") from error
        self._wrote_at_s = self._loop.time()

    async def done(self) -> None:
        """Send ``[DONE]`` and end the response. Raises ReaderLost."""
        await self._end(b"data: [DONE]\n\n")

    async def end(self) -> None:
        """End the response. Raises ReaderLost."""
        await self._end(b"")

    async def __aenter__(self) -> Self:
        self._heart = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_heart()

    async def _end(self, body: bytes) -> None:
        await self._stop_heart()
        await self.write(body, more=False)

    async def _emit(self, body: bytes, *, more: bool) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _beat(self) -> None:
        """Send a comment, which clients skip, when nothing was sent for a while. Send none before the status."""
        # The next event finds a reader that is too slow.
        with suppress(ReaderLost):
            while True:
                due_s = self._wrote_at_s + HEARTBEAT_S - self._loop.time()
                if due_s > 0 or self._writing.locked():
                    await asyncio.sleep(max(due_s, HEARTBEAT_S / 10))
                elif self.started:
                    await self.write(b": waiting\n\n")
                else:
                    self._wrote_at_s = self._loop.time()

    async def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.wait((self._heart,))
            self._heart = None


async def unless_reader_leaves(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run ``work`` to its end, or cancel it as soon as the reader has gone. The request's body must have been read.

    Raises:
        Exception: what ``work`` raised.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait((working, leaving))
    if not working.cancelled():
        working.result()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
