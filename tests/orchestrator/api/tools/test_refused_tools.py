"""Tools that are refused, each by its place, and models that cannot call."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from orchestrator.api.http import tool_use
from tests.orchestrator.api.http_serving import CHAT, MESSAGES
from tests.orchestrator.api.tools.stage import NAMED, Stage, staged, tokenizer_of, whole
from tests.support.tool_calls import FORMATS, TOOLS, spelled, template

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes() -> AsyncIterator[Stage]:
    async with staged("hermes", template("hermes")) as stage:
        yield stage


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


BAD = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "objekt"}}}}
CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HISTORY = [*MESSAGES, {"role": "tool", "tool_call_id": "x", "content": "1"}]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [tool(), tool()]}, "tools", "two functions of the name f"),
    ({"tools": [tool()] * 129}, "tools", "at most 128"),
    ({"tools": [tool(name="a b")]}, "tools[0].function.name", "should match pattern"),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters", 'type "object"'),
    ({"tools": [tool(extra=1)]}, "tools[0].function.extra", "not a parameter"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "should be 'function'"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "g, which is not among"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "must be none, auto, required"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tools": None, "tool_choice": NAMED}, "tool_choice", "needs tools"),
    ({"response_format": {"type": "json_object"}}, "response_format", "excludes tools"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "excludes tools"),
    ({"functions": [{"name": "f"}]}, "functions", "at most 0 items"),
    (
        {"tools": [tool(), tool(name="g", parameters=BAD)], "tool_choice": "required"},
        "tools[1].function.parameters.properties.a.items",
        "Invalid type: objekt",
    ),
    ({"tools": [tool(parameters={"not": {}})], "tool_choice": "required"}, "tools[0].function.parameters", "not"),
    ({"tools": [tool(description="x" * 300_000)], "max_tokens": 1}, "max_tokens", "context length"),
    ({"tools": [tool(description="x" * 3_000_000)]}, "messages", "bytes; 2097152 are the most"),
    ({"tool_choice": "required", "min_tokens": 2}, "min_tokens", "excludes a grammar"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": NAMED}]}]},
        "messages[0].tool_calls[0].function.name",
        "required",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "f", "arguments": "[" * 5000}}]}]},
        "messages[0].tool_calls[0].function.arguments",
        "must be an object of JSON",
    ),
    ({"messages": [MESSAGES[0] | {"tool_calls": [CALL]}]}, "messages[0]", "belong to the role assistant"),
]  # fmt: skip


async def test_what_is_refused_by_its_place(hermes: Stage) -> None:
    site, num_sessions = hermes.site, len(hermes.site.room.verifier.sessions)
    for body, param, problem in REFUSED:
        asked = {"model": "fake", "messages": MESSAGES, "tools": [tool()]} | body
        response = await site.client.post(CHAT, json=asked)
        assert response.status_code == 400, (body, response.text)
        error = response.json()["error"]
        assert (error["param"], error["message"].partition(": ")[0]) == (param, param)
        assert problem in error["message"]
    assert len(site.room.verifier.sessions) == num_sessions


async def test_tools_that_take_too_long_together_are_refused(hermes: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_use, "MAX_CHECK_S", 0.0)
    asked = tool(parameters={"type": "object", "properties": {"never": {"type": "null"}}})
    body = {"model": "fake", "messages": MESSAGES, "tools": [asked], "tool_choice": "required"}
    response = await hermes.site.client.post(CHAT, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert "take more than 0 s" in response.json()["error"]["message"]


async def test_what_a_schema_says_of_whitespace_may_be_nonsense(hermes: Stage) -> None:
    hermes.text = spelled(FORMATS["hermes"], ("f", "{}"))
    asked = tool(parameters={"type": "object", "x-guidance": 5})
    assert (await whole(hermes, tools=[asked], tool_choice="required"))["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("chat_template", "body", "param", "problem"),
    [
        ("{{ messages[0].content }}", {"tools": TOOLS}, "tools", "template knows none"),
        ("{{ messages[0].content }}", {"messages": HISTORY}, "messages", "template knows none"),
        ("{{ messages[0].content }}", {"tools": TOOLS, "tool_choice": "none"}, None, ""),
        ("{{ tools }}<tool_call>\n<function=", {"tools": TOOLS}, "tools", "gateway.tool_call_format"),
        ("{{ tools }}", {"tools": TOOLS}, "tools", "gateway.tool_call_format"),
        (
            "{{ tools[0].function.parameters.properties | items | list }}<tool_call>",
            {"tools": [tool(parameters={"type": "object", "properties": 5})]},
            "messages",
            "template refuses",
        ),
        (
            "{{ messages[1].tool_calls[0].function.arguments + 'x' }}",
            {"messages": [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
            "messages",
            "template refuses",
        ),
    ],
)
async def test_a_model_that_cannot_call(
    hermes: Stage, chat_template: str, body: dict[str, Any], param: str | None, problem: str
) -> None:
    orchestrator = hermes.site.room.request_queue.orchestrator
    hermes.text, known = "So.", orchestrator.tokenizer
    orchestrator.tokenizer = tokenizer_of("hermes", chat_template)
    try:
        response = await hermes.site.client.post(CHAT, json={"model": "fake", "messages": MESSAGES} | body)
    finally:
        orchestrator.tokenizer = known
    if param is None:
        assert response.json()["choices"][0]["message"]["content"] == "So."
        return
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert problem in error["message"]
