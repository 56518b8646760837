"""The responses of one stream, from its handler and from other threads."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

_log = logging.getLogger(__name__)


class Outbox:
    """Writes a stream's responses one at a time, as gRPC demands. A context: what is posted outlives no session.

    Args:
        write: sends one response.
    """

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._posted: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> "Outbox":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        for task in self._posted:
            task.cancel()
        await asyncio.gather(*self._posted, return_exceptions=True)

    async def send(self, message: Any) -> None:
        """Send one response, after those that are being sent."""
        async with self._writing:
            await self._write(message)

    def post(self, message: Any) -> None:
        """Have a response sent that nobody waits for. From any thread; dropped where the stream has ended."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._start, message)

    def _start(self, message: Any) -> None:
        if not self._closed:
            task = self._loop.create_task(self._send_posted(message))
            self._posted.add(task)
            task.add_done_callback(self._posted.discard)

    async def _send_posted(self, message: Any) -> None:
        try:
            await self.send(message)
        except Exception as error:
            # The handler meets what is wrong with the stream by itself.
            _log.debug("a posted response was not sent: %s: %s", type(error).__name__, error)
