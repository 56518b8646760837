"""A proxy between cuts the events of a stream, or glues them together: clients read the same text."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import openai
import pytest

from orchestrator.decode.request import GenerationRequest
from specgate_lab.clients import stream_completion
from tests.orchestrator.api.http_serving import TOKENIZER, Site, said, said_to
from tests.support.cut_proxy import Cut, CutProxy, cut_place

NUM_TOKENS = 30


@pytest.fixture(params=Cut)
async def proxy(request: pytest.FixtureRequest, site: Site) -> AsyncIterator[CutProxy]:
    async with CutProxy(site.url.removeprefix("http://"), request.param) as proxy:
        yield proxy


async def test_our_own_client_and_openais(proxy: CutProxy) -> None:
    request = GenerationRequest((1,), max_tokens=NUM_TOKENS)
    stream = stream_completion(proxy.endpoint, "fake", request, "Hello")
    deltas = await asyncio.to_thread(lambda: list(stream))
    token_ids = tuple(token_id for delta in deltas for token_id in delta.token_ids)
    assert token_ids == said(TOKENIZER.encode("Hello"), NUM_TOKENS)
    async with openai.AsyncOpenAI(base_url=f"http://{proxy.endpoint}/v1", api_key="none", max_retries=0) as client:
        chunks = await client.completions.create(model="fake", prompt="Hello", max_tokens=NUM_TOKENS, stream=True)
        text = "".join([choice.text async for chunk in chunks for choice in chunk.choices])
    assert text == said_to("Hello", NUM_TOKENS)


@pytest.mark.parametrize("cut", Cut)
async def test_no_byte_is_lost_and_pieces_end_inside_of_events(cut: Cut) -> None:
    events = [f'data: {{"text": "{word}"}}\n\n'.encode() for word in ("na\u00efve", "\u65e5\u672c", "plain")]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        for event in events:
            writer.write(event)
            await writer.drain()
            await asyncio.sleep(0.15)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, CutProxy(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", cut) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.endpoint.split(":"))
        writer.write(b"?")
        pieces = [piece async for piece in _pieces(reader)]
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    assert b"".join(pieces) == b"".join(events)
    assert any(not piece.endswith(b"\n\n") for piece in pieces)
    if cut is Cut.BYTES:
        assert proxy.num_pieces == sum(map(len, events))
    else:
        assert any(b"\n\ndata:" in piece for piece in pieces)


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(1 << 16):
        yield piece


def test_where_it_cuts() -> None:
    assert cut_place("data: é".encode() + b"\n\n") == len("data: ") + 1
    assert cut_place(b"data: a\n\ndata: b\n\n") == len(b"data: a\n\n") + 2
    assert cut_place(b"HTTP/1.1 200 OK\r\n") == len(b"HTTP/1.1 200 OK\r\n")
