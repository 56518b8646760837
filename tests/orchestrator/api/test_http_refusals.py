"""What the HTTP door refuses, and how it says so. Nothing of it reaches a service."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from orchestrator.api.http import body
from orchestrator.decode.text import TextTokenizer
from tests.orchestrator.api.http_serving import CHAT, COMPLETIONS, Site, ascii_tokenizer, open_site

JSON = {"content-type": "application/json"}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    async with open_site() as site:
        yield site


async def refused(site: Site, path: str, body: bytes, status: int = 400) -> dict[str, Any]:
    """Return the error of a request that must be refused before any service hears of it."""
    num_sessions = len(site.room.verifier.sessions)
    response = await site.client.post(path, content=body, headers=JSON)
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer.keys() == {"error"}
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    assert site.room.request_queue.num_inside == 0
    assert len(site.room.verifier.sessions) == num_sessions
    return answer["error"]


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("best", 1, "unknown_parameter"),
        ("x" * 64, 1, "unknown_parameter"),
        ("guided_json", None, "unknown_parameter"),
        ("n", 2, "unsupported_value"),
        ("best_of", 2, "unsupported_value"),
        ("echo", True, "unsupported_value"),
        ("suffix", "x", "unsupported_value"),
        ("min_tokens", 1, "unsupported_value"),
        ("max_tokens", "9", "invalid_type"),
        ("max_tokens", 1.5, "invalid_type"),
        ("max_tokens", True, "invalid_type"),
        ("max_tokens", 0, "invalid_value"),
        ("max_tokens", -1, "invalid_value"),
        ("max_tokens", 10**9, "context_length_exceeded"),
        ("max_tokens", 10**30, "context_length_exceeded"),
        ("max_tokens", [1], "invalid_type"),
        ("temperature", "hot", "invalid_type"),
        ("temperature", -0.1, "invalid_value"),
        ("temperature", 1e9, "invalid_value"),
        ("temperature", 10**400, "invalid_value"),
        ("top_p", 0, "invalid_value"),
        ("top_p", 1.1, "invalid_value"),
        ("top_k", -2, "invalid_value"),
        ("min_p", 2, "invalid_value"),
        ("repetition_penalty", 0, "invalid_value"),
        ("presence_penalty", 2.5, "invalid_value"),
        ("frequency_penalty", -2.5, "invalid_value"),
        ("logit_bias", {"5": 101}, "invalid_value"),
        ("logit_bias", {"97": 1}, "invalid_value"),
        ("logit_bias", {"x": 1}, "invalid_value"),
        ("logit_bias", {str(one): 0 for one in range(1025)}, "invalid_value"),
        ("logit_bias", [1], "invalid_type"),
        ("stop", "", "invalid_value"),
        ("stop", ["a"] * 17, "invalid_value"),
        ("stop", "a" * 257, "invalid_value"),
        ("stop", [1], "invalid_type"),
        ("cache_salt", "x" * 257, "invalid_value"),
        ("cache_salt", 5, "invalid_type"),
        ("stop_token_ids", [97], "invalid_value"),
        ("stop_token_ids", list(range(257)), "invalid_value"),
        ("seed", -1, "invalid_value"),
        ("seed", 1 << 64, "invalid_value"),
        ("logprobs", 21, "invalid_value"),
        ("logprobs", True, "invalid_type"),
        ("stream", "yes", "invalid_type"),
        ("stream_options", {"include_usage": True}, "invalid_value"),
        ("gamma", 65, "invalid_value"),
        ("gate", "maybe", "invalid_value"),
        ("gate_threshold", 1.5, "invalid_value"),
        ("verification", "none", "invalid_value"),
        ("user", "u" * 513, "invalid_value"),
        ("prompt", [], "invalid_value"),
        ("prompt", "", "invalid_value"),
        ("prompt", None, "invalid_value"),
        ("prompt", {"text": "a"}, "invalid_value"),
        ("prompt", ["a", "b"], "invalid_value"),
        ("prompt", [[1], [2]], "invalid_value"),
        ("prompt", [1, "a"], "invalid_value"),
        ("prompt", [1, True], "invalid_value"),
        ("prompt", [-1], "invalid_value"),
        ("prompt", [97], "invalid_value"),
        ("prompt", [10**30], "invalid_value"),
        ("prompt", [1] * 512, "context_length_exceeded"),
        ("prompt", [1] * 600, "context_length_exceeded"),
        ("model", 1, "invalid_type"),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_field_of_a_completion(site: Site, field: str, value: object, code: str) -> None:
    body = {"model": "fake", "prompt": [5, 17, 3]} | {field: value}
    error = await refused(site, COMPLETIONS, json.dumps(body).encode())
    param = error["param"] or ""
    assert param.partition("[")[0].partition(".")[0] == field
    assert error["code"] == code
    assert error["message"].startswith(param)
    assert len(error["message"]) < 300


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [USER] * 4097}, "messages", "invalid_value"),
        ({"messages": "Hi"}, "messages", "invalid_type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "unsupported_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [USER, {"role": "user", "content": None}]}, "messages[1].content", "invalid_type"),
        ({"messages": [USER | {"tool_calls": [{}]}]}, "messages[0].tool_calls", "invalid_value"),
        ({"messages": [USER | {"weight": 1}]}, "messages[0].weight", "unknown_parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content",
            "invalid_value",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content", None),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "user", "content": "a" * 600}]}, "messages", "context_length_exceeded"),
        ({"max_completion_tokens": 10**9}, "max_completion_tokens", "context_length_exceeded"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"max_completion_tokens": 3, "max_tokens": 3}, "max_tokens", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_value"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "unsupported_value"),
        ({"modalities": ["audio"]}, "modalities[0]", "unsupported_value"),
        ({"audio": {}}, "audio", "unsupported_parameter"),
        ({"metadata": {"a": "b"}}, "metadata", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_value"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "invalid_value",
        ),
        ({"prompt": "a"}, "prompt", "unknown_parameter"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_field_of_a_chat(site: Site, changes: dict[str, Any], param: str, code: str | None) -> None:
    body = {"model": "fake", "messages": [USER]} | changes
    error = await refused(site, CHAT, json.dumps(body).encode())
    assert error["param"] == param
    assert error["code"] == (code or "invalid_value")
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"", None, "invalid_json"),
        (b"{", None, "invalid_json"),
        (b'{"model": "\xff"}', None, "invalid_json"),
        (b'{"prompt": "\\ud800"}', None, "invalid_json"),
        (b"[" * 100_000, None, "invalid_json"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", None, "invalid_json"),
        (b"null", None, "invalid_type"),
        (b"[]", None, "invalid_type"),
        (b"{}", "model", "missing_required_parameter"),
        (b'{"model": "fake"}', "prompt", "missing_required_parameter"),
        (b'{"model": "fake", "prompt": "a", "' + b"x" * 100_000 + b'": 1}', "x" * 64, "unknown_parameter"),
        (b'{"model": "fake", "prompt": "a", "logit_bias": {"x": 1}}', "logit_bias.x", "invalid_value"),
        (b'{"model": "fake", "prompt": "a", "temperature": NaN}', "temperature", "invalid_value"),
        (b'{"model": "fake", "prompt": "a", "temperature": 1e999}', "temperature", "invalid_value"),
        (b'{"model": "fake", "prompt": "a", "logit_bias": {"1": -Infinity}}', "logit_bias.1", "invalid_value"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_body(site: Site, body: bytes, param: str | None, code: str) -> None:
    error = await refused(site, COMPLETIONS, body)
    assert (error["param"], error["code"]) == (param, code)


async def test_model_that_is_not_served(site: Site) -> None:
    error = await refused(site, COMPLETIONS, b'{"model": "gpt-4", "prompt": "a"}', 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'fake'" in error["message"]


async def test_body_that_is_too_long(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_BODY_BYTES", 1000)
    too_long = b'{"model": "fake", "prompt": "' + b"a" * 1000 + b'"}'
    assert "1000 bytes" in (await refused(site, COMPLETIONS, too_long, 413))["message"]

    async def parts() -> AsyncIterator[bytes]:
        yield too_long[:900]
        yield too_long[900:]

    response = await site.client.post(COMPLETIONS, content=parts(), headers=JSON)
    assert response.status_code == 413


async def test_long_body_is_parsed_as_a_short_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SMALL_BODY_BYTES", 10)
    assert (await refused(site, COMPLETIONS, b'{"model": "fake"}'))["param"] == "prompt"
    await site.post(COMPLETIONS, prompt="a", max_tokens=1)


@pytest.mark.parametrize(
    ("path", "prompt", "param"),
    [
        (COMPLETIONS, {"prompt": "a" * 131_073}, "prompt"),
        (CHAT, {"messages": [USER, USER | {"content": "a" * 131_072}]}, "messages"),
    ],
    ids=["completion", "chat"],
)
async def test_prompt_that_cannot_fit_is_refused_unread(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str, prompt: dict[str, Any], param: str
) -> None:
    monkeypatch.delattr(TextTokenizer, "encode")
    monkeypatch.delattr(TextTokenizer, "encode_chat")
    error = await refused(site, path, json.dumps({"model": "fake"} | prompt).encode())
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert "characters; 131072 are the most" in error["message"]


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_body_of_a_page_that_asks_behind_its_readers_back(site: Site, media_type: str) -> None:
    body = b'{"model": "fake", "prompt": "a"}'
    response = await site.client.post(COMPLETIONS, content=body, headers={"content-type": media_type})
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


async def test_paths_and_methods(site: Site) -> None:
    for response, status in (
        (await site.client.get("/v2/nothing"), 404),
        (await site.client.get(COMPLETIONS), 405),
        (await site.client.get("/openapi.json"), 404),
    ):
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_model_without_a_chat_template() -> None:
    async with open_site(tokenizer=ascii_tokenizer(None)) as site:
        error = await refused(site, CHAT, json.dumps({"model": "fake", "messages": [USER]}).encode())
        assert error["param"] == "messages"
        assert "chat template" in error["message"]
