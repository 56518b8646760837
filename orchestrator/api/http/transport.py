"""How we end a connection, and when its client reads too little."""

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 5.0
"""How long a client may go on sending after its connection's last answer, before the connection is broken."""
STALL_S = 30.0
"""How long a client may read nothing of an answer. Streams have a stricter rule of their own."""


class ReadWatch:
    """Aborts a connection whose client reads nothing of what is written."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport, stall_s: float) -> None:
        """Abort ``transport`` if nothing of its buffer is read for ``stall_s`` seconds, or the buffer is empty then."""
        self.cancel()
        self._timer = self._loop.call_later(stall_s, self._look, transport, stall_s, transport.get_write_buffer_size())

    def cancel(self) -> None:
        """Watch no more. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, transport: asyncio.Transport, stall_s: float, num_bytes_before: int) -> None:
        if 0 < transport.get_write_buffer_size() < num_bytes_before:
            self.start(transport, stall_s)
        else:
            transport.abort()


class EndedByUs:
    """A transport for uvicorn. uvicorn would close it with unread bytes; here ``end`` is called instead."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self._transport = transport
        self._end = end
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._ended or self._transport.is_closing()

    def close(self) -> None:
        self._ended = True
        self._end()
