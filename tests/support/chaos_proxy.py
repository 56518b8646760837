"""A bad line between two peers: late, unsteady, or broken off in the middle of what crosses it."""

import asyncio
import random
import socket
import struct
import time
from contextlib import suppress

from specgate_lab.network.delay_proxy import Proxy

_RESET = struct.pack("ii", 1, 0)
"""Linger for no time at all: closing then is a reset."""
_UNLIMITED = 1 << 60


class BadLine(Proxy):
    """Each piece is late by up to ``jitter_s``. The first ``num_resets`` connections are reset, each after up to
    ``max_bytes``. In every second nothing passes for ``freeze_s``.
    """

    def __init__(
        self, target: str, jitter_s: float = 0.0, num_resets: int = 0, max_bytes: int = 4096, freeze_s: float = 0.0
    ) -> None:
        super().__init__(target)
        self._freeze_s = freeze_s
        self._jitter_s, self._num_resets, self._max_bytes = jitter_s, num_resets, max_bytes
        self._random = random.Random(0)
        self.num_reset = 0
        self.endpoint = ""

    async def __aenter__(self) -> "BadLine":
        self.endpoint = await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See ``Proxy``."""
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        room = self._random.randrange(1, self._max_bytes) if self.num_reset < self._num_resets else _UNLIMITED

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal room
            while room > 0 and (data := await source.read(1024)):
                room -= len(data)
                await asyncio.sleep(self._random.uniform(0, self._jitter_s))
                if (frozen_s := self._freeze_s - time.monotonic() % 1.0) > 0:
                    await asyncio.sleep(frozen_s)
                sink.write(data)
                await sink.drain()

        both = [asyncio.ensure_future(pass_on(reader, far_writer)), asyncio.ensure_future(pass_on(far_reader, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.num_reset += room <= 0
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for one in (writer, far_writer):
                with suppress(OSError):
                    one.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.transport.abort()
