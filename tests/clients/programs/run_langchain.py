"""langchain-openai: chats, streams, lists of prompts, structured output, tools."""

from typing import Any

from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.programs.cases import (
    CITIES,
    CITY_SCHEMA,
    KEY,
    MAX_TOKENS,
    OBJECT_TOKENS,
    PROMPT,
    QUESTION,
    TOOL,
    WIDE,
    Door,
    case,
    main,
)


def chat(door: Door, **others: Any) -> Any:
    settings: Any = {"max_tokens": MAX_TOKENS, "temperature": 0, "max_retries": 0, "timeout": 120, **others}
    return ChatOpenAI(base_url=door.url, model=door.model, api_key=KEY, **settings)


def completions(door: Door) -> Any:
    settings: Any = {"max_tokens": MAX_TOKENS, "temperature": 0, "max_retries": 0}
    return OpenAI(base_url=door.url, model=door.model, api_key=KEY, **settings)


@case
def completion(door: Door) -> str:
    return str(completions(door).invoke(PROMPT))


@case
def completion_stream(door: Door) -> str:
    return "".join(completions(door).stream(PROMPT))


@case
def list_of_prompts(door: Door) -> list[str]:
    answer = completions(door).generate([PROMPT, "import "])
    return [one.text for (one,) in answer.generations]


@case
def chat_whole(door: Door) -> str:
    return str(chat(door).invoke(QUESTION).content)


@case
def chat_stream(door: Door) -> str:
    return "".join(chunk.content for chunk in chat(door).stream(QUESTION))


@case
def wide_chat_stream(door: Door) -> str:
    return "".join(chunk.content for chunk in chat(door, max_tokens=48, extra_body=WIDE).stream(QUESTION))


@case
def structured(door: Door) -> Any:
    schema = {"title": "city", "description": "A city.", **CITY_SCHEMA}
    asked = chat(door, max_tokens=OBJECT_TOKENS).with_structured_output(schema, method="json_schema", strict=True)
    city = asked.invoke(QUESTION)
    assert city["name"] in CITIES
    return city


@case
def tools(door: Door) -> Any:
    asked = chat(door, max_tokens=OBJECT_TOKENS).bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
    (call,) = asked.invoke(QUESTION).tool_calls
    assert call["name"] == "weather"
    assert call["args"]["city"] in CITIES
    return call["args"]


@case
def tools_stream(door: Door) -> Any:
    whole: Any = None
    for chunk in (
        chat(door, max_tokens=OBJECT_TOKENS)
        .bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
        .stream(QUESTION)
    ):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    return call["args"]


if __name__ == "__main__":
    main()
