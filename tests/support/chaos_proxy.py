"""A bad line between two peers: late, unsteady, or broken off in the middle of what crosses it."""

import asyncio
import random
import socket
import struct
from contextlib import suppress

from orchestrator.bench.network.delay_proxy import DelayProxy
from specgate.rpc.endpoint import split_endpoint

_RESET = struct.pack("ii", 1, 0)
"""Linger for no time at all: closing then is a reset."""


class JitterProxy(DelayProxy):
    """Each connection is late by a delay of its own, drawn anew for every new connection."""

    def __init__(self, target: str, one_way_s: float, jitter_s: float) -> None:
        super().__init__(target, one_way_s)
        self._mean_s, self._jitter_s, self._random = one_way_s, jitter_s, random.Random(0)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._one_way_s = max(0.0, self._random.uniform(self._mean_s - self._jitter_s, self._mean_s + self._jitter_s))
        super()._connected(reader, writer)


class ResettingProxy:
    """Passes connections on to ``target``, and resets each after a random number of bytes, until ``num_resets``."""

    def __init__(self, target: str, max_bytes: int, num_resets: int) -> None:
        self._target = split_endpoint(target)
        self._max_bytes, self._left = max_bytes, num_resets
        self._random = random.Random(0)
        self.num_reset = 0
        self._server: asyncio.Server

    async def start(self) -> str:
        """Return the endpoint that stands for the target."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        room = [self._random.randrange(1, self._max_bytes) if self.num_reset < self._left else 1 << 60]

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1024):
                room[0] -= len(data)
                if room[0] < 0:
                    raise ConnectionResetError
                sink.write(data)
                await sink.drain()

        both = [asyncio.ensure_future(pass_on(reader, far_writer)), asyncio.ensure_future(pass_on(far_reader, writer))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        self.num_reset += room[0] < 0
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        for one in (writer, far_writer):
            with suppress(OSError):
                one.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            one.transport.abort()
