"""A proxy that cuts answers where no event ends: byte by byte, or several glued together and cut inside of one."""

import asyncio
import contextlib
import socket
from enum import StrEnum

from specgate_lab.network.delay_proxy import Proxy

BYTE_PAUSE_S = 1e-4
"""Time for the reader to come and take one byte before the next is there."""
GATHER_S = 0.2
"""What a server writes in so long comes in one piece."""
_READ_BYTES = 1 << 16
_MARK = b"data:"
_CONTINUATION = range(0x80, 0xC0)
"""Bytes of a character in UTF-8 behind its first."""


class Cut(StrEnum):
    """How the bytes of an answer come."""

    BYTES = "byte by byte"
    GLUED = "glued together"


class CutProxy(Proxy):
    """Passes requests on as they are, and answers cut. ``num_pieces`` counts the writes, over all connections."""

    def __init__(self, target: str, cut: Cut) -> None:
        super().__init__(target)
        self._cut = cut
        self.num_pieces = 0
        self.endpoint = ""

    async def __aenter__(self) -> "CutProxy":
        self.endpoint = await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See ``Proxy``."""
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        answer = self._bytes if self._cut is Cut.BYTES else self._glued
        both = [asyncio.ensure_future(_whole(reader, far_writer)), asyncio.ensure_future(answer(far_reader, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for one in (writer, far_writer):
                one.close()

    async def _bytes(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_READ_BYTES):
            for byte in data:
                await self._write(sink, bytes([byte]))
                await asyncio.sleep(BYTE_PAUSE_S)

    async def _glued(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        held, ended = b"", False
        while not ended:
            fresh, ended = await _gathered(source)
            data, held = held + fresh, b""
            if fresh and not ended:
                place = cut_place(data)
                data, held = data[:place], data[place:]
            if data:
                await self._write(sink, data)

    async def _write(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        self.num_pieces += 1
        sink.write(data)
        await sink.drain()


async def _whole(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_READ_BYTES):
        sink.write(data)
        await sink.drain()


async def _gathered(source: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return what comes within ``GATHER_S``, and whether that is the end."""
    data = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GATHER_S):
            while piece := await source.read(_READ_BYTES):
                data += piece
            return data, True
    return data, False


def cut_place(data: bytes) -> int:
    """Return where to cut: inside of the last character of several bytes, else inside of the last ``data:``, else at
    the end.
    """
    wide = max((index for index, byte in enumerate(data) if byte in _CONTINUATION), default=None)
    if wide is not None:
        return wide
    mark = data.rfind(_MARK)
    return mark + 2 if mark >= 0 else len(data)
