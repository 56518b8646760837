"""Streams of the HTTP door: their chunks, how they fail, readers that leave and readers that are slow."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.api.http.routes import make_app
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InternalError, InvalidArgument, KVCacheFull, SpecgateError
from tests.orchestrator.api.http_serving import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PROMPT,
    TOKENIZER,
    TURNS,
    Buggy,
    Site,
    ascii_tokenizer,
    open_site,
    said,
    said_to,
)
from tests.orchestrator.api.queues import PATIENT, Hanging, dying_after, occupied, open_room
from tests.support.patience import eventually

FAILING_FAST = replace(PATIENT, failover_s=0.5)
BODY = {"model": "fake", "prompt": PROMPT}


async def test_stream_of_a_completion(site: Site) -> None:
    chunks = await site.stream(COMPLETIONS, prompt=PROMPT, max_tokens=40)
    assert chunks.pop() == "[DONE]"
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == TOKENIZER.decode(said((5, 17, 3), 40))
    assert choices.pop() == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    assert len(choices) > 5
    assert all(choice["text"] and choice["finish_reason"] is None for choice in choices)
    await site.room.freed()


async def test_stream_of_a_chat(site: Site) -> None:
    chunks = await site.stream(CHAT, messages=MESSAGES, max_tokens=40)
    assert chunks.pop() == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices.pop() == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert "".join(choice["delta"]["content"] for choice in choices) == said_to(TURNS, 40)


async def test_usage_so_far_in_every_chunk(site: Site) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = await site.stream(COMPLETIONS, prompt=PROMPT, max_tokens=20, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    told = [len(chunk["choices"][0]["text"]) for chunk in chunks]
    assert counts == [sum(told[: index + 1]) for index in range(len(told))]
    assert {chunk["usage"]["prompt_tokens"] for chunk in (*chunks, last)} == {3}
    assert (counts[-1], last["usage"]["completion_tokens"], last["choices"]) == (20, 20, [])
    # Without the other option there is no usage at all, as with vLLM.
    chunks = await site.stream(COMPLETIONS, prompt="a", stream_options={"continuous_usage_stats": True})
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_extras_of_all_tokens_are_in_the_chunks(site: Site) -> None:
    extras = {"return_token_ids": True, "return_sources": True, "logprobs": 0}
    chunks = await site.stream(COMPLETIONS, prompt=PROMPT, max_tokens=40, **extras)
    assert chunks[0]["prompt_token_ids"] == PROMPT
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert tuple(one for choice in choices for one in choice["token_ids"]) == said((5, 17, 3), 40)
    assert all(len(choice["sources"]) == len(choice["token_ids"]) for choice in choices)
    offsets = [offset for choice in choices if choice["logprobs"] for offset in choice["logprobs"]["text_offset"]]
    assert offsets == list(range(40))


async def test_a_character_waits_for_its_bytes_and_its_tokens_wait_with_it(byte_level: TextTokenizer) -> None:
    """Ids 95 and 96 of the byte-level tokenizer are no character alone."""
    async with open_site(tokenizer=byte_level) as site:
        chunks = await site.stream(COMPLETIONS, prompt=PROMPT, max_tokens=300, return_sources=True)
    *choices, end = [chunk["choices"][0] for chunk in chunks[:-1]]
    ids = said((5, 17, 3), 300)
    assert {95, 96} & set(ids)
    assert "".join(choice["text"] for choice in choices) == byte_level.decode(ids)
    assert all(choice["text"] for choice in choices)
    assert sum(len(choice["sources"]) for choice in [*choices, end]) == 300


async def test_failure_in_mid_stream_is_an_event_and_the_last_one() -> None:
    async with open_site(dying_after(5), timeouts=FAILING_FAST) as site:
        *chunks, last = await site.stream(COMPLETIONS, prompt=PROMPT, max_tokens=200, return_token_ids=True)
        sent = [one for chunk in chunks for one in chunk["choices"][0]["token_ids"]]
        assert tuple(sent) == said((5, 17, 3), 200)[: len(sent)]
        assert last["error"]["last_token_index"] == len(sent) - 1 > 0
        assert (last["error"]["type"], last["error"]["code"]) == ("server_error", "service_unavailable")
        await site.room.freed()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "code", "retry_after"),
    [
        (KVCacheFull("full"), 429, "kv_cache_full", "1"),
        (InternalError("broken"), 500, "internal", None),
        (InvalidArgument("prompt_token_ids", "no"), 400, "invalid_value", None),
    ],
    ids=["full", "broken", "invalid"],
)
async def test_failure_before_the_first_token_is_a_status(
    refusal: SpecgateError, status: int, code: str, retry_after: str | None, stream: bool
) -> None:
    async with open_site(timeouts=FAILING_FAST) as site:
        site.room.verifier.refusal = refusal
        response = await site.client.post(COMPLETIONS, json=BODY | {"stream": stream})
        assert (response.status_code, response.headers.get("retry-after")) == (status, retry_after)
        assert response.json()["error"]["code"] == code
        assert site.room.request_queue.num_inside == 0


async def test_a_bug_is_told_by_an_id_alone() -> None:
    async with open_site(tokenizer=ascii_tokenizer(kind=Buggy)) as site:
        response = await site.client.post(COMPLETIONS, json=BODY)
        assert response.status_code == 500
        *_, event = await site.stream(COMPLETIONS, prompt=PROMPT)
        for error in (response.json()["error"], event["error"]):
            assert re.fullmatch(r"internal error, correlation id \w+", error["message"])


async def test_more_than_may_wait_are_sent_away() -> None:
    async with (
        open_site(max_running=1, max_queued=0) as site,
        occupied(site.room),
    ):
        # No work is put into a request that would be refused anyway.
        for prompt in (PROMPT, [1] * 600):
            response = await site.client.post(COMPLETIONS, json=BODY | {"prompt": prompt})
            assert (response.status_code, response.headers["retry-after"]) == (429, "1")
            assert response.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_reader_who_leaves_frees_both_services(stream: bool) -> None:
    async with open_site(Hanging) as site:
        task = asyncio.create_task(site.client.post(COMPLETIONS, json=BODY | {"stream": stream}))
        await eventually(lambda: bool(site.room.verifier.num_open and site.room.drafter.num_open))
        await eventually(lambda: site.room.verifier.sessions[0].num_verdicts == 3)
        task.cancel()
        await site.room.freed()


class Wire:
    """An ASGI client by hand, which takes nothing while ``taking`` is clear."""

    def __init__(self) -> None:
        self.taking = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self._body = [{"type": "http.request", "more_body": False}]

    async def post(self, app: Any, body: bytes) -> None:
        self._body[0]["body"] = body
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "query_string": b"", "headers": headers}
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._body:
            await asyncio.Event().wait()
        return self._body.pop()

    async def _send(self, message: dict[str, Any]) -> None:
        await self.taking.wait()
        self.sent.append(message)


STREAMED = b'{"model": "fake", "prompt": [5, 17, 3], "max_tokens": 300, "stream": true, "gate": "none", "gamma": 1}'


async def test_reader_who_takes_nothing_for_too_long_is_given_up() -> None:
    async with open_room(tokenizer=TOKENIZER, output_buffer=2, slow_reader_s=0.1) as room:
        wire = Wire()
        await wire.post(make_app(room.request_queue), STREAMED)
        assert wire.sent == []
        assert room.request_queue.num_inside == 0
        await room.freed()
