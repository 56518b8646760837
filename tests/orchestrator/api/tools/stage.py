"""A site whose target says what a test wants, and its answers' calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from orchestrator.decode.text import TextTokenizer
from specgate.types import SessionSpec
from tests.orchestrator.api.http_serving import CHAT, MESSAGES, Site, Telling, open_site
from tests.support.tool_calls import FORMATS, TOOLS, Script, byte_tokenizer

CITY = '{ "city": "Taipé🦉", "days": 3 }'
CALLED = ("weather", CITY)
NAMED = {"type": "function", "function": {"name": "weather"}}


@dataclass(slots=True)
class Stage:
    """A site whose target says ``text``, whatever it is asked; the marks of its format are special tokens."""

    name: str
    text: str = ""
    site: Site = field(init=False)

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.site.room.request_queue.tokenizer

    def make(self, spec: SessionSpec) -> Telling:
        model: Any = Script(self.tokenizer.encode(self.text, add_special_tokens=False), len(spec.prompt_token_ids))
        return Telling(spec, model=model)


def tokenizer_of(name: str, chat_template: str) -> TextTokenizer:
    return TextTokenizer(byte_tokenizer(tuple(FORMATS[name].markers), chat_template=chat_template))


@asynccontextmanager
async def staged(name: str, chat_template: str, **limits: Any) -> AsyncIterator[Stage]:
    stage = Stage(name)
    async with open_site(stage.make, tokenizer_of(name, chat_template), context_length=4096, **limits) as stage.site:
        yield stage


def told(stage: Stage) -> str:
    """What the target was asked last."""
    return stage.tokenizer.decode(
        stage.site.room.verifier.sessions[-1].spec.prompt_token_ids, skip_special_tokens=False
    )


async def whole(stage: Stage, **body: Any) -> Any:
    answer = await stage.site.post(CHAT, **{"messages": MESSAGES, "tools": TOOLS, "max_tokens": 400} | body)
    return answer["choices"][0]


def of_message(choice: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    message = choice["message"]
    calls = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", ())]
    return message["content"], calls, choice["finish_reason"]
