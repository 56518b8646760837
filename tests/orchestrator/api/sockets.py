"""Clients of the WebSocket, in Python."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from orchestrator.api.http.upgrade import STREAM
from tests.support.patience import PATIENCE_S, patience

BODY = {"prompt": [5, 17, 3], "max_tokens": 12, "ignore_eos": True, "gate": "none"}
ENDS = ('{"error"', '{"cancelled"', "[DONE]")


@asynccontextmanager
async def socket_to(url: str, **options: Any) -> AsyncIterator[ClientConnection]:
    """A connection to a server at an ``http`` or ``https`` URL."""
    url = url.replace("http", "ws", 1) + STREAM
    async with connect(url, **{"ping_interval": None, "open_timeout": PATIENCE_S} | options) as socket:
        yield socket


async def ask(socket: ClientConnection, request: dict[str, Any] | str) -> list[str]:
    """Send a request, or a text that is none; return all messages of its answer."""
    await socket.send(request if isinstance(request, str) else json.dumps(request))
    return await answer(socket)


async def answer(socket: ClientConnection) -> list[str]:
    """Return the messages that come up to the end of an answer."""
    messages: list[str] = []
    async with patience():
        while not messages or not messages[-1].startswith(ENDS):
            messages.append(str(await socket.recv()))
    return messages


async def refusal(socket: ClientConnection, request: dict[str, Any] | str) -> dict[str, Any]:
    """Return the one message that a request is answered with."""
    (message,) = await ask(socket, request)
    told: dict[str, Any] = json.loads(message)
    return told


def text_of(messages: list[str]) -> str:
    """Return the text of a completion that came to its end."""
    *events, done = messages
    assert done == "[DONE]"
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])
