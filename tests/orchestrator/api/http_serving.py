"""The HTTP door on a socket of its own, and a tokenizer that reads the fake model's ids."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import httpx2
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from orchestrator.api.http.openapi import document
from orchestrator.api.http.protocol import Deadlines
from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import HttpSettings
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import IncrementalText, TextTokenizer
from specgate.types import SessionSpec, TokenLogprobs, Verdict
from tests.orchestrator.api.queues import Room, expected, open_room
from tests.support.fakes import FakeVerifier

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
PROMPT = [5, 17, 3]
MESSAGES = [{"role": "user", "content": "Hi"}]
TURN = "<|turn|>"
TURNS = f"{TURN}user:Hi{TURN}assistant:"
"""``MESSAGES`` as the model reads them."""
CHAT_TEMPLATE = """\
{%- if messages[0].role == 'assistant' %}{{ raise_exception('a user speaks first') }}{% endif %}
{%- for message in messages %}{{ '<|turn|>' + message.role + ':' + message.content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant:' }}{% endif %}"""


def ascii_tokenizer(
    chat_template: str | None = CHAT_TEMPLATE, kind: type[TextTokenizer] = TextTokenizer
) -> TextTokenizer:
    """One token a printable character: as many ids as the fake model has."""
    vocab = {"<|end|>": 0} | {chr(code): code - 31 for code in range(32, 127)} | {TURN: 96}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<|end|>", TURN])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", chat_template=chat_template)
    return kind(tokenizer)


TOKENIZER = ascii_tokenizer()


class Buggy(TextTokenizer):
    """Has a bug that shows when a text ends."""

    class _Text(IncrementalText):
        def flush(self) -> str:
            raise ValueError("a secret")

    def incremental(self, *_: Any, **__: Any) -> IncrementalText:
        return self._Text(self, (), frozenset())


def said(prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    """What the fake target alone says after ``prompt``."""
    return expected(GenerationRequest(prompt, max_tokens=max_tokens))


def said_to(text: str, max_tokens: int) -> str:
    """What it says in the words of ``TOKENIZER``."""
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    return TOKENIZER.decode(said(ids, max_tokens))


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> dict[str, Any]:
    """What an answer says of its tokens."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Telling(FakeVerifier):
    """Tells log-probabilities, also of the prompt: token 7 is always the likeliest, then the emitted one."""

    @property
    def prompt_logprobs(self) -> Iterator[list[TokenLogprobs]]:
        num, num_top = self.spec.num_prompt_logprobs, self.spec.prompt_logprobs
        ids = self.spec.prompt_token_ids[1 : num + 1]
        told = [TokenLogprobs(-0.5 - i, ((7, -0.25), (one, -0.5 - i))[:num_top]) for i, one in enumerate(ids)]
        return (told[first : first + 2] for first in range(0, num, 2))

    def _judge(self, *args: Any) -> Verdict:
        start = len(self.committed)
        verdict = super()._judge(*args)
        if self.spec.logprobs is None:
            return verdict
        emitted = self.committed[start:]
        told = tuple(TokenLogprobs(-1.5, ((7, -0.25), (one, -1.5))[: self.spec.logprobs]) for one in emitted)
        return replace(verdict, logprobs=told)


@cache
def described_body(path: str) -> Any:
    """Return what checks a body by the schema that ``/openapi.json`` has for it."""
    described = document()
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return Draft202012Validator(schema | {"components": described["components"]})


def check_described(path: str, body: dict[str, Any]) -> None:
    """Fail where a body is not as ``/openapi.json`` says."""
    described_body(path).validate(json.loads(json.dumps(body)))


@dataclass(slots=True)
class Site:
    """A room whose request queue is reached over HTTP."""

    room: Room
    client: httpx2.AsyncClient
    url: str

    async def post(self, path: str, **body: Any) -> Any:
        """Return the answer's JSON; it must be a 200, and the body be as ``/openapi.json`` says."""
        check_described(path, {"model": "fake"} | body)
        response = await self.client.post(path, json={"model": "fake"} | body)
        assert response.status_code == 200, response.text
        return response.json()

    async def stream(self, path: str, **body: Any) -> list[Any]:
        """Return the stream's events; the last one is what ``[DONE]`` says, where it says it."""
        check_described(path, {"model": "fake", "stream": True} | body)
        async with self.client.stream("POST", path, json={"model": "fake", "stream": True} | body) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            return list(events((await response.aread()).decode()))


def events(text: str) -> Iterator[Any]:
    """Yield what each event carries."""
    for event in text.split("\n\n"):
        if event:
            data = event.removeprefix("data: ")
            assert data != event
            yield data if data == "[DONE]" else json.loads(data)


@asynccontextmanager
async def serving_http(
    request_queue: RequestQueue,
    keyring: Keyring | None = None,
    deadlines: Deadlines = Deadlines(),
    **settings: Any,
) -> AsyncIterator[str]:
    """Serve the door on a free loopback port; yield its URL."""
    server = HttpServer(make_app(request_queue, keyring=keyring), HttpSettings(**settings), deadlines)
    await server.start()
    try:
        yield f"http://{server.endpoint}"
    finally:
        await server.drain(0.0)


@asynccontextmanager
async def open_site(
    make_verifier: Callable[[SessionSpec], Any] = Telling, tokenizer: TextTokenizer | None = None, **limits: Any
) -> AsyncIterator[Site]:
    """The fake pair behind the HTTP door."""
    async with (
        open_room(make_verifier, tokenizer or ascii_tokenizer(), **limits) as room,
        serving_http(room.request_queue) as url,
        httpx2.AsyncClient(base_url=url, timeout=60) as client,
    ):
        yield Site(room, client, url)
