"""``chat`` and ``generate`` with ``--server ws://``: what they say over gRPC, they say over the WebSocket."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.keys.key_file import KeyEntry, hash_of, write_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.settings.listen import HttpSettings, TlsSettings
from orchestrator.cli.socket_client import SocketClient
from specgate.client import Params
from specgate.errors import ResourceExhausted, ServiceUnavailable
from tests.orchestrator.api.http_serving import TOKENIZER, ascii_tokenizer, open_site, serving_http
from tests.orchestrator.api.queues import Hanging, Room, dying_after, occupied, open_api, open_room
from tests.orchestrator.cli.test_chat import answer_to, prompts_of, read
from tests.specgate.rpc.certificates import Certificates
from tests.support.loop_thread import LoopThread
from tests.support.orchestrating import Cli
from tests.support.patience import eventually

FLAGS = ("--max-tokens", "30", "--gate", "none", "--seed", "3", "--temperature", "0.5")


@asynccontextmanager
async def both(
    *args: Any, tokenizer: Any = TOKENIZER, keyring: Keyring | None = None, **settings: Any
) -> AsyncIterator[tuple[Room, str, str]]:
    """A system behind both APIs: yield it, its gRPC address, and the URL of its WebSocket."""
    async with (
        open_api(*args, tokenizer=tokenizer, keyring=keyring) as (room, door),
        serving_http(room.request_queue, keyring, **settings) as url,
    ):
        yield room, door.endpoint, url.replace("http", "ws", 1)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


def chat(orchestrator: Cli, monkeypatch: pytest.MonkeyPatch, said: str, *flags: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
    return orchestrator("chat", *flags)


def test_a_chat(orchestrator: Cli, monkeypatch: pytest.MonkeyPatch, loop: LoopThread) -> None:
    with loop.entered(both()) as (room, grpc, url):
        said = [
            chat(orchestrator, monkeypatch, "Hi\nHo", "--server", server, *FLAGS, "--system", "Be")
            for server in (grpc, url)
        ]
        asked = prompts_of([session.spec for session in room.verifier.sessions])
    assert said[0] == said[1]
    hi = read("Hi", system="Be")
    assert asked[2:] == [hi, read("Hi", answer_to(hi), "Ho", system="Be")] == asked[:2]


def test_objects_with_the_same_counts(orchestrator: Cli, loop: LoopThread, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "Hello"}, {"token_ids": [5, 17, 3], "logit_bias": {"7": 1.5}, "stop": ["zz"]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    with loop.entered(both()) as (_, grpc, url):
        ask = partial(orchestrator, "generate", "--prompts", str(file), "--json", *FLAGS)
        told = [[json.loads(line) for line in ask("--server", server)[1].splitlines()] for server in (grpc, url)]
    for one in (*told[0], *told[1]):
        one["stats"].pop("tokens_per_s")
    assert told[0] == told[1]
    assert told[0][0]["stats"]["drafted"] > 0


def test_failures(orchestrator: Cli, monkeypatch: pytest.MonkeyPatch, loop: LoopThread, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hello", "logprobs": 1}')
    with loop.entered(both(dying_after(3))) as (_, _, url):
        ask = partial(orchestrator, "generate", "--server", f"{url}/v1/stream")
        refused, broken = ask("Hello", "--max-tokens", "9999"), ask("Hello")
        with_logprobs = ask("--prompts", str(file), "--json")
        long = chat(orchestrator, monkeypatch, "long " * 200, "--server", url)
    problem = "--max-tokens: 5 prompt tokens and 9999 more pass the context length of 512"
    assert refused[::2] == (2, f"orchestrator: {problem}\n")
    assert (broken[0], broken[2].count("\n")) == (1, 1)
    assert json.loads(with_logprobs[1])["error"]["field"] == "logprobs"
    assert long[2].startswith("the conversation is too long: chat (tokens): ")
    code, _, told = orchestrator("generate", "x", "--server", "ws://127.0.0.1:1")
    assert (code, told.startswith("orchestrator: ws://127.0.0.1:1/v1/stream: ")) == (1, True)


def test_a_model_that_cannot_chat(orchestrator: Cli, monkeypatch: pytest.MonkeyPatch, loop: LoopThread) -> None:
    with loop.entered(both(tokenizer=ascii_tokenizer(chat_template=None))) as (_, _, url):
        code, _, told = chat(orchestrator, monkeypatch, "Hi", "--server", url)
    assert (code, told.startswith("orchestrator: chat.messages: the served model has no chat template")) == (2, True)


def test_over_tls_with_a_key(
    orchestrator: Cli, monkeypatch: pytest.MonkeyPatch, loop: LoopThread, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    (certificate, key), (own, own_key) = map(certificates.issue, ("server", "client"))
    write_keys(tmp_path / "keys.yaml", [KeyEntry(name="ann", sha256=hash_of("sg-right"))])
    tls = TlsSettings(certificate=certificate, key=key, client_ca=certificates.ca)
    ring = Keyring(tmp_path / "keys.yaml")
    with loop.entered(both(keyring=ring, tls=tls)) as (_, _, url):
        trusting = ("--tls-ca", str(certificates.ca), "--tls-server-name", "localhost")
        mutual = (*trusting, "--tls-certificate", str(own), "--tls-key", str(own_key))
        ask = partial(orchestrator, "generate", "Hello", "--max-tokens", "9", "--server")
        monkeypatch.setenv("SPECGATE_KEY", "sg-right")
        assert ask(url, *mutual)[0] == ask(url.replace("ws:", "wss:"), *mutual)[0] == 0
        assert ask(url, *trusting)[0] == ask(url.replace("ws:", "wss:"))[0] == 1
        monkeypatch.setenv("SPECGATE_KEY", "sg-wrong")
        assert "this key is not known here" in ask(url, *mutual)[2]


async def ask_of(url: str) -> None:
    async for _ in SocketClient(url, None, None).stream("Hello", Params(max_tokens=9)):
        pass


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with open_site(max_running=1, max_queued=0) as site, occupied(site.room):
        with pytest.raises(ResourceExhausted) as refused:
            await ask_of(site.url.replace("http", "ws", 1))
    assert refused.value.retry_after_s == 1


async def test_a_request_that_the_server_ends_is_told_so() -> None:
    async with open_room(Hanging, TOKENIZER) as room:
        server = HttpServer(make_app(room.request_queue), HttpSettings())
        await server.start()
        asking = asyncio.create_task(ask_of(f"ws://{server.endpoint}"))
        await eventually(lambda: room.verifier.num_open)
        await server.drain(0.1)
        with pytest.raises(ServiceUnavailable, match="the server ended the request"):
            await asking
