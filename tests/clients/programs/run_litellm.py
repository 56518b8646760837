"""litellm: chats, completions, streams, tools."""

import json
from typing import Any

import litellm

from tests.clients.programs.cases import (
    CITIES,
    KEY,
    MAX_TOKENS,
    MESSAGES,
    OBJECT_TOKENS,
    PROMPT,
    TOOL,
    WIDE,
    Door,
    case,
    main,
)

ONE_CALL: Any = {"max_tokens": OBJECT_TOKENS, "parallel_tool_calls": False}
GREEDY: Any = {"max_tokens": MAX_TOKENS, "temperature": 0, "timeout": 120, "num_retries": 0}


def chat(door: Door, **others: Any) -> Any:
    settings = {"messages": MESSAGES, **GREEDY, **others}
    return litellm.completion(model=f"openai/{door.model}", api_base=door.url, api_key=KEY, **settings)


def complete(door: Door, **others: Any) -> Any:
    settings = {"prompt": PROMPT, **GREEDY, **others}
    return litellm.text_completion(
        model=f"text-completion-openai/{door.model}", api_base=door.url, api_key=KEY, **settings
    )


@case
def completion(door: Door) -> str:
    return str(complete(door).choices[0].text)


@case
def completion_stream(door: Door) -> str:
    return "".join(one.text or "" for chunk in complete(door, stream=True) for one in chunk.choices)


@case
def chat_whole(door: Door) -> str:
    return str(chat(door).choices[0].message.content)


@case
def chat_stream(door: Door) -> str:
    return "".join(one.delta.content or "" for chunk in chat(door, stream=True) for one in chunk.choices)


@case
def wide_chat_stream(door: Door) -> str:
    chunks = chat(door, stream=True, max_tokens=48, extra_body=WIDE)
    return "".join(one.delta.content or "" for chunk in chunks for one in chunk.choices)


@case
def bad_request(door: Door) -> str:
    message = ""
    try:
        chat(door, temperature=-1)
    except litellm.BadRequestError as error:
        message = str(error)
    assert "temperature" in message
    return "BadRequestError"


@case
def tools(door: Door) -> Any:
    message = chat(door, tools=[TOOL], tool_choice="required", **ONE_CALL).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in CITIES
    return arguments


if __name__ == "__main__":
    main()
