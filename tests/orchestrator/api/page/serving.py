"""The gateway's HTTP door over fakes, as the page sees it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import HttpSettings
from orchestrator.decode.text import TextTokenizer
from specgate.types import SessionSpec
from tests.orchestrator.api.http_serving import Telling, ascii_tokenizer
from tests.orchestrator.api.queues import Room, open_room
from tests.support.fakes import FakeModel


class Reciting(FakeModel):
    """Says one text, over and over."""

    recital = ""

    def next_token(self, token_ids: Any) -> int:
        return ord(self.recital[len(token_ids) % len(self.recital)]) - 31


def reciting(text: str, **fields: Any) -> Callable[[SessionSpec], Telling]:
    """A target that says ``text`` of printable ASCII for ever, beginning wherever its prompt ends."""
    model = type("Recital", (Reciting,), {"recital": text})()
    return lambda spec: Telling(spec, model=model, **fields)


def slow(delay_s: float = 0.05) -> Callable[[SessionSpec], Telling]:
    """A target whose every verdict takes so long."""
    return lambda spec: Telling(spec, delay_s=delay_s)


@asynccontextmanager
async def serving_door(request_queue: RequestQueue, keyring: Keyring | None = None) -> AsyncIterator[str]:
    """Serve the door and the page on a free port; yield its URL."""
    server = HttpServer(make_app(request_queue, keyring=keyring), HttpSettings())
    await server.start()
    try:
        yield f"http://{server.endpoint}"
    finally:
        await server.drain(0.0)


@asynccontextmanager
async def open_door(
    make_verifier: Callable[[SessionSpec], Any] = Telling,
    tokenizer: TextTokenizer | None = None,
    keyring: Keyring | None = None,
    **limits: Any,
) -> AsyncIterator[tuple[Room, str]]:
    """The fake pair behind the page; yield it and the page's URL."""
    async with (
        open_room(make_verifier, tokenizer or ascii_tokenizer(), **limits) as room,
        serving_door(room.request_queue, keyring) as url,
    ):
        yield room, url
