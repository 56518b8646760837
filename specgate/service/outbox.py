"""The responses of one stream, from its handler and from other threads."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from specgate.errors import reason_of

_log = logging.getLogger(__name__)


class Outbox:
    """Writes a stream's responses one at a time, as gRPC demands. Posted responses are dropped when the context ends.

    Args:
        write: sends one response.
    """

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Any] = []
        self._posting: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> "Outbox":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if self._posting is not None:
            self._posting.cancel()
            await asyncio.wait((self._posting,))

    async def send(self, message: Any) -> None:
        """Send one response, after the response that is being sent."""
        async with self._writing:
            await self._write(message)

    def post(self, message: Any) -> None:
        """Queue a response and return. Called from any thread; dropped if the stream has ended.

        If the reader is slow, only the last two queued responses are kept. ``send`` may overtake them.
        """
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._start, message)

    def _start(self, message: Any) -> None:
        self._waiting = [*self._waiting[-1:], message]
        if not self._closed and (self._posting is None or self._posting.done()):
            self._posting = self._loop.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                async with self._writing:
                    message, *self._waiting = self._waiting
                    await self._write(message)
        except Exception as error:
            # The handler notices a broken stream by itself.
            _log.debug("a posted response was not sent: %s", reason_of(error))
