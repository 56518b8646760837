"""The WebSocket: it streams what SSE streams, and keeps the same limits; what else it has are its own ends."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from orchestrator.api.http import body, websocket
from orchestrator.api.http.body import MAX_BODY_BYTES
from orchestrator.api.http.protocol import Deadlines
from orchestrator.api.http.routes import make_app
from orchestrator.api.http.server import HttpServer
from orchestrator.api.keys import keyring
from orchestrator.api.keys.key_file import KeyEntry, hash_of, write_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.settings.listen import HttpSettings
from orchestrator.services.timeouts import Timeouts
from specgate.rpc.request_id import KEY
from specgate.types import Verdict
from tests.orchestrator.api.http_serving import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PROMPT,
    TOKENIZER,
    Site,
    Telling,
    ascii_tokenizer,
    open_site,
    said,
    serving_http,
)
from tests.orchestrator.api.queues import Hanging, dying_after, occupied, open_room
from tests.orchestrator.api.sockets import BODY, answer, ask, refusal, socket_to, text_of
from tests.orchestrator.api.test_http_stream import FAILING_FAST
from tests.orchestrator.api.wires import SHORT_S, door, wire_to
from tests.support.heard import hearing
from tests.support.patience import PATIENCE_S, eventually, patience

TEXT = TOKENIZER.decode(said((5, 17, 3), 12))
CANCEL = '{"cancel": true}'
OWN = r'"id":"[\w-]+","created":\d+'
"""What each answer has of its own."""


@pytest.fixture
async def socket(site: Site) -> AsyncIterator[ClientConnection]:
    async with socket_to(site.url) as socket:
        yield socket


async def close_code(socket: ClientConnection) -> int | None:
    """Return the code with which the server closes, past all that it still sends."""
    with suppress(ConnectionClosed):
        async with patience():
            while True:
                await socket.recv()
    return socket.close_code


@pytest.mark.parametrize(
    ("path", "asked"),
    [(COMPLETIONS, BODY | {"return_sources": True, "logprobs": 2, "n": 2}), (CHAT, {"messages": MESSAGES})],
    ids=["completion", "chat"],
)
async def test_messages_are_the_data_of_the_same_streams_events(
    site: Site, socket: ClientConnection, path: str, asked: dict[str, Any]
) -> None:
    asked = {"model": "fake", "seed": 4, "gate": "none"} | asked
    response = await site.client.post(path, json=asked | {"stream": True})
    events = [event.removeprefix("data: ") for event in response.text.split("\n\n") if event]
    messages = await ask(socket, asked | {"stream": True})
    assert len(messages) > 10
    assert sorted(re.sub(OWN, "", one) for one in messages) == sorted(re.sub(OWN, "", one) for one in events)


async def test_requests_come_after_each_other_and_may_leave_out_what_is_clear(
    site: Site, socket: ClientConnection
) -> None:
    assert text_of(await ask(socket, BODY)) == TEXT
    # The next one may come early.
    await socket.send(json.dumps(BODY))
    assert [text_of(await ask(socket, BODY)), text_of(await answer(socket))] == [TEXT, TEXT]
    whole, done = await ask(socket, BODY | {"stream": False})
    assert (json.loads(whole)["choices"][0]["text"], done) == (TEXT, "[DONE]")
    chat = await ask(socket, {"messages": MESSAGES, "max_tokens": 3})
    assert json.loads(chat[0])["object"] == "chat.completion.chunk"
    await site.room.freed()


@pytest.mark.parametrize("bad", ["nope", "[]", '{"prompt": "a", "temperature": 1e999}', '{"max_tokens": 1, "id": 7}'])
async def test_an_error_is_that_of_http_with_its_status(site: Site, socket: ClientConnection, bad: str) -> None:
    told = await refusal(socket, bad)
    response = await site.client.post(COMPLETIONS, content=bad, headers={"content-type": "application/json"})
    assert told.pop("status") == response.status_code == 400
    assert told["error"].keys() == response.json()["error"].keys()
    assert told["error"]["type"] == "invalid_request_error"
    assert text_of(await ask(socket, BODY)) == TEXT


async def test_a_request_has_the_id_that_its_message_gives(site: Site, socket: ClientConnection) -> None:
    with hearing() as heard:
        told = await refusal(socket, BODY | {"id": "my/1", "max_tokens": -1})
        assert told["error"]["request_id"] == "my/1"
        await ask(socket, BODY | {"id": "my/2"})
        lines = heard.starting("POST /v1/completions: ")
        assert [line.request_id for line in lines] == ["my/1", "my/2"]
        assert socket.response is not None
        assert re.fullmatch("[0-9a-f]{16}", socket.response.headers[KEY])
    spaced = ' { "stop" : ["\\"id\\": \\"x\\", }"] , "id" : "my/3" , "prompt":[5, 17, 3], "max_tokens": 2 } '
    assert len(text_of(await ask(socket, spaced))) == 2
    async with socket_to(site.url, additional_headers={KEY: "handshake", "Content-Length": "0"}) as other:
        assert (await refusal(other, BODY | {"max_tokens": -1}))["error"]["request_id"] != "handshake"
        assert text_of(await ask(other, BODY)) == TEXT


async def test_a_full_queue_tells_when_to_come_back() -> None:
    async with open_site(max_running=1, max_queued=0) as site, socket_to(site.url) as socket:
        async with occupied(site.room):
            told = await refusal(socket, BODY)
        assert (told["status"], told["retry_after_s"], told["error"]["type"]) == (429, 1, "rate_limit_error")


async def test_a_failure_in_mid_stream_is_the_last_message() -> None:
    async with open_site(dying_after(5), timeouts=FAILING_FAST) as site, socket_to(site.url) as socket:
        *events, last = await ask(socket, BODY | {"max_tokens": 200})
        # A token is a character.
        assert json.loads(last)["error"]["last_token_index"] == len(text_of([*events, "[DONE]"])) - 1 > 0
        await site.room.freed()


async def test_cancel_frees_the_sessions_and_the_socket_goes_on() -> None:
    targets: Iterator[Any] = chain([Hanging], repeat(Telling))
    async with open_site(lambda spec: next(targets)(spec)) as site, socket_to(site.url) as socket:
        await socket.send(json.dumps(BODY | {"return_token_ids": True}))
        await eventually(lambda: site.room.verifier.num_open and site.room.drafter.num_open)
        await socket.send(CANCEL)
        assert (await answer(socket))[-1] == '{"cancelled":true}'
        assert site.room.request_queue.num_inside == 0
        await site.room.freed()
        # There is nothing to cancel any more.
        assert await ask(socket, CANCEL) == ['{"cancelled":false}']
        assert text_of(await ask(socket, BODY)) == TEXT


@pytest.mark.parametrize("breaks", [False, True])
async def test_who_leaves_frees_both_services(breaks: bool) -> None:
    async with open_site(Hanging) as site, socket_to(site.url) as socket:
        await socket.send(json.dumps(BODY))
        await eventually(lambda: site.room.verifier.num_open and site.room.drafter.num_open)
        if breaks:
            socket.transport.abort()
        else:
            await socket.close()
        await site.room.freed()


@pytest.mark.parametrize(
    ("messages", "code"), [([json.dumps(BODY)] * 2, 1008), ([b"{}"], 1003), ([" " * (MAX_BODY_BYTES + 1)], 1009)]
)
async def test_what_may_not_be_sent_closes_the_socket_and_frees_the_request(
    messages: list[str | bytes], code: int
) -> None:
    async with open_site(Hanging) as site, socket_to(site.url) as socket:
        await socket.send(json.dumps(BODY))
        await eventually(lambda: site.room.verifier.num_open and site.room.drafter.num_open)
        for message in messages:
            await socket.send(message)
        assert await close_code(socket) == code
        await site.room.freed()


async def test_messages_of_all_clients_have_a_limit_until_they_are_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "MAX_PENDING_BYTES", 100_000)
    async with socket_to(site.url) as socket:
        for _ in range(3):
            await ask(socket, json.dumps(BODY).ljust(60_000))
            assert body._PENDING.num_bytes == 0
        await socket.send(json.dumps(BODY).ljust(2_000_000))
        assert await close_code(socket) == 1013
    await eventually(lambda: body._PENDING.num_bytes == 0)


async def test_where_memory_is_full_a_short_message_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_site(Hanging) as site, socket_to(site.url) as socket:
        await socket.send(json.dumps(BODY))
        await eventually(lambda: site.room.verifier.num_open)
        monkeypatch.setattr(body, "MAX_PENDING_BYTES", 0)
        await socket.send(iter(("{", "}")))
        await socket.send(CANCEL)
        assert (await answer(socket))[-1] == '{"cancelled":true}'
        assert json.loads((await answer(socket))[-1])["status"] == 429


async def test_a_message_has_the_time_of_a_body() -> None:
    async with door(Deadlines(body_s=SHORT_S)) as url, wire_to(url) as wire:
        await wire.send(HANDSHAKE.encode() + b"\x01\x81\0\0\0\0{")
        async with patience():
            assert b"a message was not complete within 0.3 s" in await wire.read(1000) + await wire.read(1000)


async def test_small_frames_without_a_request_have_a_limit(site: Site, socket: ClientConnection) -> None:
    for _ in range(websocket.MAX_SMALL_FRAMES - 100):
        await socket.ping()
    assert text_of(await ask(socket, BODY)) == TEXT
    with suppress(ConnectionClosed):
        for _ in range(2 * websocket.MAX_SMALL_FRAMES):
            await socket.ping()
    assert await close_code(socket) == 1008


async def test_pings_behind_a_close_hold_no_connection(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "LINGER_S", SHORT_S)
    async with wire_to(site.url) as wire:
        await wire.send(HANDSHAKE.encode() + b"\x82\x80\0\0\0\0")
        rest = asyncio.create_task(wire.rest())
        with suppress(ConnectionError):
            async with patience():
                while not rest.done():
                    await wire.send(b"\x89\x80\0\0\0\0")
                    await asyncio.sleep(0.02)
        with suppress(ConnectionError):
            assert (await rest).endswith(b"a message is JSON in text frames")


async def test_keys_in_the_header_or_as_a_subprotocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.yaml"
    write_keys(file, [KeyEntry(name="ann", sha256=hash_of("sg-right"))])
    monkeypatch.setattr(keyring, "LOOK_S", 0.0)
    async with open_room(tokenizer=ascii_tokenizer()) as room, serving_http(room.request_queue, Keyring(file)) as url:
        for options in ({}, {"subprotocols": ["specgate", "bearer.sg-wrong"]}):
            with pytest.raises(InvalidStatus) as refused:
                async with socket_to(url, **options):
                    pass
            assert refused.value.response.status_code == 401
            assert json.loads(refused.value.response.body or b"")["error"]["code"] == "invalid_api_key"
        async with socket_to(url, additional_headers={"Authorization": "Bearer sg-right"}) as socket:
            assert text_of(await ask(socket, BODY)) == TEXT
        async with socket_to(url, subprotocols=["specgate", "bearer.sg-right"]) as socket:
            assert socket.subprotocol == "specgate"
            assert text_of(await ask(socket, BODY)) == TEXT
            write_keys(file, [KeyEntry(name="bob", sha256=hash_of("sg-other"))])
            # A key is looked up for every request.
            assert (await refusal(socket, BODY))["status"] == 401


async def origin_of(origin: str | None, hosts: tuple[str, ...] = (), **headers: str) -> int:
    """Return how a page's request for a WebSocket is answered."""
    async with open_room(tokenizer=ascii_tokenizer()) as room:
        server = HttpServer(make_app(room.request_queue, hosts=hosts), HttpSettings())
        await server.start()
        own = f"http://{server.endpoint}"
        try:
            async with socket_to(own, origin=own if origin == "own" else origin, additional_headers=headers):
                return 101
        except InvalidStatus as error:
            return error.response.status_code
        finally:
            await server.drain(0.0)


@pytest.mark.parametrize(
    ("origin", "hosts", "status"),
    [
        (None, (), 101),
        ("own", (), 101),
        ("http://page.example", (), 403),
        ("null", (), 403),
        ("http://127.0.0.1:1", (), 403),
        ("http://[::1", (), 403),
        ("https://app.page.example:8443", ("*.page.example",), 101),
        ("https://page.example.evil", ("page.example",), 403),
        ("https://page.example.", ("page.example.",), 101),
        ("https://page.example", ("*",), 403),
    ],
)
async def test_pages_of_elsewhere_are_refused_unless_their_host_is_listed(
    origin: str | None, hosts: tuple[str, ...], status: int
) -> None:
    assert await origin_of(origin, hosts) == status


@pytest.mark.parametrize(
    ("change", "status"),
    [(("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 8"), 400), (("Upgrade: websocket\r\n", ""), 426)],
)
async def test_what_is_no_request_for_a_websocket_is_told_so(site: Site, change: tuple[str, str], status: int) -> None:
    async with wire_to(site.url) as wire:
        await wire.send(HANDSHAKE.replace(*change).replace("Upgrade\r\n", "Upgrade, close\r\n").encode())
        assert (await wire.refusal())[0] == status


HANDSHAKE = (
    "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def test_a_reader_who_takes_nothing_is_given_up_and_fills_no_memory() -> None:
    asked = BODY | {"max_tokens": 30_000, "gamma": 1, "return_token_ids": True}
    limits = {"output_buffer": 2, "slow_reader_s": 0.2, "context_length": 1 << 16}
    async with open_site(**limits) as site, socket_to(site.url, max_queue=1) as socket:
        # A client that is not asked for more messages stops reading.
        await socket.send(json.dumps(asked))
        await eventually(lambda: site.room.request_queue.num_inside)
        await site.room.freed()
        assert site.room.verifier.sessions[0].num_verdicts < 15_000
        assert await close_code(socket) == 1008


async def test_a_socket_without_a_request_ends_and_is_kept_alive_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_S", 0.1)
    monkeypatch.setattr(websocket, "LINGER_S", SHORT_S)
    async with open_room() as room, serving_http(room.request_queue, idle_timeout_s=1) as url, wire_to(url) as wire:
        await wire.send(HANDSHAKE.encode())
        _, _, frames = (await wire.rest()).partition(b"\r\n\r\n")
        assert frames.startswith(b"\x89\0" * 3)
        assert frames.endswith(b"\x88\x14" + (1000).to_bytes(2, "big") + b"no request for 1 s")


async def test_a_drain_ends_idle_sockets_at_once_and_others_behind_their_answer() -> None:
    async with AsyncExitStack() as stack:
        room = await stack.enter_async_context(open_room(lambda spec: Telling(spec, delay_s=0.02), ascii_tokenizer()))
        server = HttpServer(make_app(room.request_queue), HttpSettings())
        await server.start()
        idle, busy = [await stack.enter_async_context(socket_to(f"http://{server.endpoint}")) for _ in range(2)]
        await busy.send(json.dumps(BODY | {"max_tokens": 40}))
        await busy.recv()
        draining = asyncio.create_task(server.drain(PATIENCE_S))
        assert await close_code(idle) == 1012
        assert (await answer(busy))[-1] == "[DONE]"
        assert await close_code(busy) == 1012
        await draining


async def test_a_drain_cuts_off_who_is_not_ready_in_time() -> None:
    async with open_room(Hanging) as room:
        server = HttpServer(make_app(room.request_queue), HttpSettings())
        await server.start()
        async with socket_to(f"http://{server.endpoint}") as socket:
            await socket.send(json.dumps(BODY | {"return_token_ids": True}))
            await eventually(lambda: room.verifier.num_open and room.drafter.num_open)
            await server.drain(0.1)
            assert await close_code(socket) == 1012
            await room.freed()


async def test_who_only_holds_sockets_keeps_nobody_out() -> None:
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(open_site())
        url = await stack.enter_async_context(serving_http(site.room.request_queue, max_connections=4))
        # Half of all are one address's.
        first, *_, last = [await stack.enter_async_context(socket_to(url)) for _ in range(3)]
        assert await close_code(first) == 1006
        assert text_of(await ask(last, BODY)) == TEXT


class Together(Telling):
    """A target that goes on behind its first verdict when ``everybody`` has one."""

    everybody = asyncio.Event()

    async def verify(self, request: Any) -> AsyncGenerator[Verdict, None]:
        async for verdict in super().verify(request):
            yield verdict
            await self.everybody.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_thousand_streams_at_once() -> None:
    waiting = Timeouts(**dict.fromkeys(("open_s", "first_verdict_s", "verdict_floor_s"), 600.0))
    limits = {"max_running": 1000, "timeouts": waiting}
    async with AsyncExitStack() as stack:
        room = await stack.enter_async_context(open_room(Together, ascii_tokenizer(), **limits))
        url = await stack.enter_async_context(serving_http(room.request_queue, max_connections=4096))
        sockets = [await stack.enter_async_context(socket_to(url)) for _ in range(1000)]
        prompts = [(1 + index % 90, 1 + index // 90, *PROMPT) for index in range(1000)]
        for socket, prompt in zip(sockets, prompts, strict=True):
            await socket.send(
                json.dumps(BODY | {"prompt": prompt, "max_tokens": 40, "gamma": 0, "return_token_ids": True})
            )
        firsts = [str(await socket.recv()) for socket in sockets]
        assert room.request_queue.num_running == 1000
        Together.everybody.set()
        for socket, first, prompt in zip(sockets, firsts, prompts, strict=True):
            assert text_of([first, *await answer(socket)]) == TOKENIZER.decode(said(prompt, 40))
        await room.freed()
