"""The gateway's HTTP door over fakes, as the page sees it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from orchestrator.api.keys.keyring import Keyring
from orchestrator.decode.text import TextTokenizer
from specgate.types import SessionSpec
from tests.orchestrator.api.http_serving import Telling, ascii_tokenizer, serving_http
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
async def open_door(
    make_verifier: Callable[[SessionSpec], Any] = Telling,
    tokenizer: TextTokenizer | None = None,
    keyring: Keyring | None = None,
    **limits: Any,
) -> AsyncIterator[tuple[Room, str]]:
    """The fake pair behind the page; yield it and the page's URL."""
    async with (
        open_room(make_verifier, tokenizer or ascii_tokenizer(), **limits) as room,
        serving_http(room.request_queue, keyring) as url,
    ):
        yield room, url
