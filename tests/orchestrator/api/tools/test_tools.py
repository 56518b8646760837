"""Tools at the HTTP door: what the model is told, what its answer becomes, whole and streamed, and what is refused."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
import pytest_asyncio

from orchestrator.api.http import tool_use
from orchestrator.decode.text import TextTokenizer
from specgate.types import GrammarKind, SessionSpec
from tests.orchestrator.api.http_serving import CHAT, MESSAGES, Site, Telling, open_site
from tests.support.tool_calls import END, FORMATS, TOOLS, Script, byte_tokenizer, spelled, template

pytestmark = pytest.mark.asyncio(loop_scope="module")

CITY = '{ "city": "Taipé🦉", "days": 3 }'
CALLED = ("weather", CITY)
NAMED = {"type": "function", "function": {"name": "weather"}}
ID = {"hermes": r"call_[0-9a-f]{24}", "llama3": r"call_[0-9a-f]{24}", "mistral": r"[A-Za-z0-9]{9}"}


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


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FORMATS)
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request.param, template(request.param)) as stage:
        yield stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hermes() -> AsyncIterator[Stage]:
    async with staged("hermes", template("hermes")) as stage:
        yield stage


def told(stage: Stage) -> str:
    """What the target was asked last."""
    return stage.tokenizer.decode(
        stage.site.room.verifier.sessions[-1].spec.prompt_token_ids, skip_special_tokens=False
    )


async def whole(stage: Stage, **body: Any) -> Any:
    answer = await stage.site.post(CHAT, **{"messages": MESSAGES, "tools": TOOLS, "max_tokens": 400} | body)
    return answer["choices"][0]


async def chunks(stage: Stage, **body: Any) -> list[Any]:
    *events, done = await stage.site.stream(CHAT, **{"messages": MESSAGES, "tools": TOOLS, "max_tokens": 400} | body)
    assert done == "[DONE]"
    return [choice for event in events for choice in event["choices"]]


def together(choices: list[Any]) -> tuple[str | None, list[tuple[str, str]], str]:
    """Put the chunks of one choice together, as a client does that is strict about their shape."""
    content: str | None = None
    calls: list[list[str]] = []
    first, *rest, last = choices
    assert first["delta"] == {"role": "assistant", "content": None}
    for choice in rest:
        delta = choice["delta"]
        assert choice["finish_reason"] is None
        if "content" in delta:
            content = (content or "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert (call["index"], call["type"], call["function"]["arguments"]) == (len(calls), "function", "")
                calls.append([call["function"]["name"], ""])
            else:
                assert (call["index"], set(call), set(call["function"])) == (
                    len(calls) - 1, {"index", "function"}, {"arguments"},
                )  # fmt: skip
                calls[-1][1] += call["function"]["arguments"]
    assert last["delta"] == {}
    return content, [(name, arguments) for name, arguments in calls], last["finish_reason"]


def of_message(choice: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    message = choice["message"]
    calls = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", ())]
    return message["content"], calls, choice["finish_reason"]


async def test_calls_that_a_model_makes_by_itself(stage: Stage) -> None:
    name = stage.name
    calls = [CALLED] if name == "llama3" else [CALLED, ("now", "{}")]
    said = "" if name == "llama3" else "Let me see."
    stage.text = said + spelled(FORMATS[name], *calls)
    choice = await whole(stage)
    assert of_message(choice) == (said or None, calls, "tool_calls")
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == len(calls)
    pattern = ID[name.partition("_")[0]]
    assert all(re.fullmatch(pattern, one) for one in ids)
    assert together(await chunks(stage)) == (said or None, calls, "tool_calls")
    assert stage.site.room.verifier.sessions[-1].spec.grammar is None
    silent = await whole(stage, tool_choice="none", skip_special_tokens=False)
    assert of_message(silent) == (stage.text + END, [], "stop")


async def test_calls_that_a_model_must_make(stage: Stage) -> None:
    stage.text = spelled(FORMATS[stage.name], CALLED)
    for choice, reason in (("required", "tool_calls"), (NAMED, "stop")):
        assert of_message(await whole(stage, tool_choice=choice)) == (None, [CALLED], reason)
        streamed = await chunks(stage, tool_choice=choice)
        assert together(streamed) == (None, [CALLED], reason)
        # Arguments come as they are made.
        assert sum("tool_calls" in one["delta"] for one in streamed) > 5
        grammar = stage.site.room.verifier.sessions[-1].spec.grammar
        assert grammar.kind is GrammarKind.LARK
        assert ("now" in grammar.text) == (choice == "required")
        several = "call)*" in grammar.text
        assert several == (choice == "required" and stage.name != "llama3")
        await whole(stage, tool_choice=choice, parallel_tool_calls=False)
        assert "call)*" not in stage.site.room.verifier.sessions[-1].spec.grammar.text


async def test_an_answer_that_is_cut_within_a_call(hermes: Stage) -> None:
    hermes.text = spelled(FORMATS["hermes"], CALLED)
    size = 50
    cut = hermes.text.encode()[: size + len("<tool_call>") - 1].decode()
    assert of_message(await whole(hermes, max_tokens=size)) == (cut, [], "length")
    assert together(await chunks(hermes, max_tokens=size)) == (cut, [], "length")
    part = ("weather", cut[cut.index(CITY[:9]) :])
    assert of_message(await whole(hermes, max_tokens=size, tool_choice="required")) == (None, [part], "length")
    assert together(await chunks(hermes, max_tokens=size, tool_choice="required")) == (None, [part], "length")
    stopped = await whole(hermes, tool_choice="required", stop="days")
    assert of_message(stopped) == (None, [("weather", CITY[: CITY.index("days")])], "stop")


async def test_without_parallel_calls_what_follows_the_first_one_is_content(hermes: Stage) -> None:
    first, second = (spelled(FORMATS["hermes"], call) for call in (CALLED, ("now", "{}")))
    hermes.text = f"{first}\n{second}"
    choice = await whole(hermes, parallel_tool_calls=False)
    assert of_message(choice) == (second, [CALLED], "tool_calls")


async def test_each_token_is_told_once_beside_calls(hermes: Stage) -> None:
    hermes.text = "I see. " + spelled(FORMATS["hermes"], CALLED, ("now", "{}"))
    extras = {"return_sources": True, "return_token_ids": True, "logprobs": True, "n": 2}
    expected = [*hermes.tokenizer.encode(hermes.text, add_special_tokens=False), 0]
    for choice_of_tools in ("auto", "required"):
        streamed = await chunks(hermes, tool_choice=choice_of_tools, **extras)
        for index in range(2):
            own = [one for one in streamed if one["index"] == index]
            assert [token_id for one in own for token_id in one["token_ids"]] == expected
            assert sum(len(one["sources"]) for one in own) == len(expected)
            assert sum(len((one["logprobs"] or {"content": ()})["content"]) for one in own) == len(expected)
    plain = await hermes.site.stream(
        CHAT, messages=MESSAGES, tools=TOOLS, max_tokens=400, stream_options={"include_usage": True}
    )
    assert plain[-2]["usage"]["completion_tokens"] == len(expected)


async def test_what_the_model_is_told(stage: Stage) -> None:
    call: dict[str, Any] = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": CITY}}
    asked = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "Rain"},
        {"role": "user", "content": "So?"},
    ]
    stage.text = "It rains."
    assert of_message(await whole(stage, messages=asked)) == ("It rains.", [], "stop")
    for word in ("Tells it", '"maxLength": 6', '"city": "Taip', "Rain", '"name": "now"'):
        assert word in told(stage)
    count = len(stage.site.room.verifier.sessions[-1].spec.prompt_token_ids)
    counted = await stage.site.client.post("/tokenize", json={"messages": asked, "tools": TOOLS})
    assert counted.json()["count"] == count
    await whole(stage, messages=asked, tool_choice="none")
    assert "Tells it" not in told(stage)
    assert "Rain" in told(stage)
    # As some clients send a call of no arguments.
    call["function"]["arguments"] = ""
    await whole(stage, messages=asked)
    assert "Taip" not in told(stage)


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


async def test_an_answer_of_nothing_can_be_sent_back(hermes: Stage) -> None:
    hermes.text = ""
    assert (await whole(hermes))["message"]["content"] == ""
    for content in ("", None):
        said = {"role": "assistant", "content": content}
        await whole(hermes, messages=[*MESSAGES, said, *MESSAGES])


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


async def test_the_format_can_be_set() -> None:
    calls = spelled(FORMATS["llama3"], CALLED)
    async with staged("hermes", "{{ tools }}{{ messages }}", tool_call_format="llama3") as stage:
        stage.text = calls
        assert of_message(await whole(stage)) == (None, [CALLED], "tool_calls")


async def test_openai_client_puts_calls_together_and_sends_them_back(hermes: Stage) -> None:
    calls = [CALLED, ("now", "{}")]
    hermes.text = f"Well.\n{spelled(FORMATS['hermes'], *calls)}"
    async with openai.AsyncOpenAI(base_url=f"{hermes.site.url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "fake", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400}
        answer = await client.chat.completions.create(**asked)
        async with client.chat.completions.stream(**asked) as stream:
            streamed = await stream.get_final_completion()
        for completion in (answer, streamed):
            (choice,) = completion.choices
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Well.")
            assert [(one.function.name, one.function.arguments) for one in choice.message.tool_calls] == calls
        results = [
            {"role": "tool", "tool_call_id": one.id, "content": "1"} for one in answer.choices[0].message.tool_calls
        ]
        messages = [*MESSAGES, answer.choices[0].message, *results]
        assert (await client.chat.completions.create(**asked | {"messages": messages})).choices
        assert json.dumps(json.loads(CITY), ensure_ascii=False) in told(hermes)
