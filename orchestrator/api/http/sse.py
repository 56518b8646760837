"""Server-sent events to one reader, who may be slow and may leave."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.types import Receive, Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
"""The last one keeps nginx from collecting events before it passes them on."""


class ReaderLost(Exception):
    """The reader took nothing for too long, or its connection broke."""


class EventWriter:
    """Writes events; the response begins with the first one.

    Args:
        slow_reader_s: seconds that one event may wait to be taken.
    """

    def __init__(self, send: Send, slow_reader_s: float) -> None:
        self._send = send
        self._slow_reader_s = slow_reader_s
        self.started = False
        """Whether the status has been sent: what fails later must be told by an event."""

    async def write(self, event: Mapping[str, Any]) -> None:
        """Send ``event`` as JSON; returns once the connection has room for more.

        Raises:
            ReaderLost: it was not taken.
        """
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        await self._write(f"data: {text}\n\n".encode())

    async def done(self) -> None:
        """Say that the answer is complete, and end the response. Raises ReaderLost."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def end(self) -> None:
        """End the response. Raises ReaderLost."""
        await self._write(b"", more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._slow_reader_s):
                if not self.started:
                    self.started = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        # TimeoutError is one of them.
        except OSError as error:
            raise ReaderLost(f"nothing was read for {self._slow_reader_s:g} s, or the connection broke") from error


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
