"""What the HTTP door refuses, and how it says so. Nothing of it reaches a service."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from orchestrator.api.http import body
from orchestrator.api.http.body import MAX_BODY_BYTES, MAX_FIELDS
from orchestrator.decode.text import TextTokenizer
from tests.orchestrator.api.http_serving import CHAT, COMPLETIONS, Site, ascii_tokenizer, open_site

JSON = {"content-type": "application/json"}
TOO_LONG = "context_length_exceeded"
USER = {"role": "user", "content": "Hi"}


pytestmark = pytest.mark.asyncio(loop_scope="module")


class Unused(TextTokenizer):
    """Reads no text."""

    def encode(self, *args: Any, **flags: Any) -> tuple[int, ...]:
        raise AssertionError("it was read")

    encode_chat = encode


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    async with open_site() as site:
        yield site


async def refused(site: Site, path: str, body: object, status: int = 400) -> dict[str, Any]:
    """Return the error of a request that must be refused before any service hears of it."""
    num_sessions = len(site.room.verifier.sessions)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await site.client.post(path, content=content, headers=JSON)
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer.keys() == {"error"}
    assert answer["error"].keys() == {"message", "type", "param", "code", "request_id"}
    assert answer["error"]["request_id"] == response.headers["x-request-id"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert len(answer["error"]["message"]) < 300
    assert site.room.request_queue.num_inside == 0
    assert len(site.room.verifier.sessions) == num_sessions
    return answer["error"]


BAD_COMPLETIONS: dict[str, dict[str, list[Any]]] = {
    "unknown_parameter": {"best": [1], "x" * 64: [1], "guided_json": [None]},
    "unsupported_value": {"best_of": [2, 0], "suffix": ["x"]},
    "invalid_type": {
        "max_tokens": ["9", 1.5, True, [1]], "temperature": ["hot"], "logit_bias": [[1]], "stop": [[1]],
        "cache_salt": [5], "echo": [1], "logprobs": [True], "stream": ["yes"], "model": [1],
    },
    "invalid_value": {
        "max_tokens": [0, -1], "temperature": [-0.1, 1e9, 10**400], "top_p": [0, 1.1], "top_k": [-2], "min_p": [2],
        "repetition_penalty": [0], "presence_penalty": [2.5], "frequency_penalty": [-2.5], "seed": [-1, 1 << 64],
        "logit_bias": [{"5": 101}, {"97": 1}, {"x": 1}, {str(one): 0 for one in range(1025)}],
        "stop": ["", ["a"] * 17, "a" * 257], "stop_token_ids": [[97], list(range(257))],
        "n": [0, -1, 17], "min_tokens": [-1, 129], "cache_salt": ["x" * 257], "logprobs": [21], "prompt_logprobs": [21],
        "stream_options": [{"include_usage": True}], "best_of": [True],
        "gamma": [65], "gate": ["maybe"], "gate_threshold": [1.5],
        "draft_threshold": [1.5, 0.5], "verification": ["none"], "user": ["u" * 513],
        "prompt": [[], "", None, {"text": "a"}, ["a"] * 17, ["a", [1]], ["a", 1], [[1], "a"],
            [[1], []], [1, "a"], [1, True], [-1], [97], [10**30]],
    },
    TOO_LONG: {"max_tokens": [10**9, 10**30], "prompt": [[1] * 512, [1] * 600, "a" * 100_000]},
}  # fmt: skip
BAD_CHATS: dict[str, dict[str, list[Any]]] = {
    "unknown_parameter": {"prompt": ["a"]},
    "unsupported_parameter": {"audio": [{}], "metadata": [{"a": "b"}], "reasoning_effort": ["high"]},
    "unsupported_value": {"store": [True]},
    "invalid_type": {"messages": ["Hi"], "logprobs": [1]},
    "invalid_value": {
        # The last one by the chat template.
        "messages": [[], [USER] * 4097, [{"role": "assistant", "content": "a"}]],
        "tool_choice": ["required", "any", 1, {"type": "function"}, {"type": "function", "function": {"name": "f"}}],
        "tools": [[{"type": "function", "function": {"name": "f"}}]], "top_logprobs": [2], "max_completion_tokens": [0],
    },
    TOO_LONG: {"messages": [[USER | {"content": "a" * 600}]], "max_completion_tokens": [10**9]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "field", "value", "code"),
    [
        (path, field, value, code)
        for path, table in ((COMPLETIONS, BAD_COMPLETIONS), (CHAT, BAD_CHATS))
        for code, fields in table.items()
        for field, values in fields.items()
        for value in values
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_bad_value_of_a_field(site: Site, path: str, field: str, value: object, code: str) -> None:
    prompt = {"prompt": [5, 17, 3]} if path == COMPLETIONS else {"messages": [USER]}
    error = await refused(site, path, {"model": "fake"} | prompt | {field: value})
    param = error["param"] or ""
    assert param.partition("[")[0].partition(".")[0] == field
    assert error["code"] == code
    assert error["message"].startswith(param)


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "unsupported_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "invalid_value"),
        ({"messages": [USER | {"tool_call_id": "x"}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [USER, USER | {"content": None}]}, "messages[1].content", "invalid_type"),
        ({"messages": [USER | {"content": [{"type": "image_url"}]}]}, "messages[0].content", "invalid_value"),
        ({"messages": [USER | {"content": [{"type": "text", "text": 1}]}]}, "messages[0].content", "invalid_value"),
        ({"messages": [USER | {"tool_calls": [{}]}]}, "messages[0].tool_calls[0].id", "missing_required_parameter"),
        ({"messages": [USER | {"weight": 1}]}, "messages[0].weight", "unknown_parameter"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type", "unsupported_value"),
        ({"modalities": ["audio"]}, "modalities[0]", "unsupported_value"),
        ({"max_completion_tokens": 3, "max_tokens": 3}, "max_tokens", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "invalid_value"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_part_or_pair_of_a_chat(site: Site, changes: dict[str, Any], param: str, code: str) -> None:
    error = await refused(site, CHAT, {"model": "fake", "messages": [USER]} | changes)
    assert (error["param"], error["code"]) == (param, code)


PROMPT = b'{"model": "fake", "prompt": [5]'
NO_JSON = [b"", b"{", b'{"model": "\xff"}', b'{"prompt": "\\ud800"}', b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        *((no_json, None, "invalid_json") for no_json in NO_JSON),
        (b"null", None, "invalid_type"),
        (b"[]", None, "invalid_type"),
        (b"{}", "model", "missing_required_parameter"),
        (b'{"model": "fake"}', "prompt", "missing_required_parameter"),
        (PROMPT + b', "' + b"x" * 100_000 + b'": 1}', "x" * 64, "unknown_parameter"),
        (PROMPT + b', "logit_bias": {"x": 1}}', "logit_bias.x", "invalid_value"),
        (PROMPT + b', "temperature": NaN}', "temperature", "invalid_value"),
        (PROMPT + b', "temperature": 1e999}', "temperature", "invalid_value"),
        (PROMPT + b', "logit_bias": {"1": -Infinity}}', "logit_bias.1", "invalid_value"),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_body(site: Site, body: bytes, param: str | None, code: str) -> None:
    error = await refused(site, COMPLETIONS, body)
    assert (error["param"], error["code"]) == (param, code)


async def test_a_prompt_that_fills_the_context_cannot_be_echoed(site: Site) -> None:
    error = await refused(site, COMPLETIONS, {"model": "fake", "prompt": [5] * 512, "max_tokens": 0, "echo": True})
    assert (error["param"], error["code"]) == ("max_tokens", TOO_LONG)
    assert "512 prompt tokens and 1 more pass the context length of 512" in error["message"]


async def test_model_that_is_not_served(site: Site) -> None:
    error = await refused(site, COMPLETIONS, {"model": "gpt-4", "prompt": "a"}, 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'fake'" in error["message"]


async def test_body_that_is_too_long(site: Site) -> None:
    longest = (PROMPT + b', "max_tokens": 1}').ljust(MAX_BODY_BYTES)
    assert (await site.client.post(COMPLETIONS, content=longest, headers=JSON)).status_code == 200
    assert f"{MAX_BODY_BYTES} bytes" in (await refused(site, COMPLETIONS, longest + b" ", 413))["message"]

    # In parts its length is not declared.
    async def parts() -> AsyncIterator[bytes]:
        yield longest
        yield b" "

    response = await site.client.post(COMPLETIONS, content=parts(), headers=JSON)
    assert response.status_code == 413


async def test_bodies_of_all_clients_have_a_limit_until_they_are_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "MAX_PENDING_BYTES", 100_000)
    statuses = []
    for num_bytes in (60_000, 60_000, 100_001):
        content = (PROMPT + b', "max_tokens": 1}').ljust(num_bytes)
        statuses.append((await site.client.post(COMPLETIONS, content=content, headers=JSON)).status_code)
    assert statuses == [200, 200, 429]


@pytest.mark.parametrize(
    ("path", "prompt", "param"),
    [
        (COMPLETIONS, {"prompt": "a" * 1_179_649}, "prompt"),
        (CHAT, {"messages": [USER, USER | {"content": "a" * 1_179_648}]}, "messages"),
    ],
    ids=["completion", "chat"],
)
async def test_prompt_that_cannot_fit_is_refused_unread(path: str, prompt: dict[str, Any], param: str) -> None:
    async with open_site(tokenizer=ascii_tokenizer(kind=Unused)) as site:
        error = await refused(site, path, {"model": "fake"} | prompt)
        assert (error["param"], error["code"]) == (param, "invalid_value")
        assert "bytes; 1179648 are the most" in error["message"]


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_body_of_a_page_that_asks_behind_its_readers_back(site: Site, media_type: str) -> None:
    response = await site.client.post(COMPLETIONS, content=PROMPT + b"}", headers={"content-type": media_type})
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize(("path", "status"), [("/v2/nothing", 404), (COMPLETIONS, 405)])
async def test_paths_and_methods(site: Site, path: str, status: int) -> None:
    response = await site.client.get(path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_model_without_a_chat_template() -> None:
    async with open_site(tokenizer=ascii_tokenizer(None)) as site:
        error = await refused(site, CHAT, {"model": "fake", "messages": [USER]})
        assert error["param"] == "messages"
        assert "chat template" in error["message"]


async def test_a_long_body_of_countless_fields_is_refused_unread(site: Site) -> None:
    fields = {f"field {number}": 0 for number in range(MAX_FIELDS + 1)}
    error = await refused(site, COMPLETIONS, {"model": "fake", "prompt": [5, 17, 3]} | fields)
    assert error["message"] == f"the body has {MAX_FIELDS + 3} fields; {MAX_FIELDS} are the most"
