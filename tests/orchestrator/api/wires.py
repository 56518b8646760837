"""Clients of the HTTP API that send what they like."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from orchestrator.api.http.protocol import Deadlines
from tests.orchestrator.api.http_serving import serving_http
from tests.orchestrator.api.queues import open_room
from tests.support.patience import PATIENCE_S, patience

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SHORT_S = 0.3


class Wire:
    """A client that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.request_id = ""
        """Of the refusal."""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, most: int) -> bytes:
        return await self._reader.read(most)

    async def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        async with patience():
            return await self._reader.read()

    async def refusal(self) -> tuple[int, str]:
        """The status and the message of the only answer, after which the connection ends."""
        head, _, body = (await self.rest()).partition(b"\r\n\r\n")
        error = json.loads(body)["error"]
        self.request_id = error["request_id"]
        assert f"x-request-id: {self.request_id}".encode() in head
        return int(head.split()[1]), error["message"]


@asynccontextmanager
async def door(deadlines: Deadlines = Deadlines(), **settings: Any) -> AsyncIterator[str]:
    async with open_room() as room, serving_http(room.request_queue, deadlines=deadlines, **settings) as url:
        yield url


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


async def is_healthy(url: str) -> bool:
    async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        return (await client.get(f"{url}/healthz")).status_code == 200
