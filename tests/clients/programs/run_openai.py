"""openai-python: completions, chats, structured output, responses, tools, refusals, a stream that is left."""

import json
from typing import Any, Literal

import openai
from pydantic import BaseModel

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


class City(BaseModel):
    """What structured answers are."""

    name: Literal["Paris", "Rome"]
    large: bool


GREEDY: Any = {"max_tokens": MAX_TOKENS, "temperature": 0}
ONE_CALL: Any = {"max_tokens": OBJECT_TOKENS, "parallel_tool_calls": False}
USAGE: Any = {"stream": True, "stream_options": {"include_usage": True}}


def connected(door: Door) -> openai.OpenAI:
    return openai.OpenAI(base_url=door.url, api_key=KEY, max_retries=0, timeout=120)


def complete(door: Door, **others: Any) -> Any:
    return connected(door).completions.create(model=door.model, **{"prompt": PROMPT, **GREEDY, **others})


def chat(door: Door, **others: Any) -> Any:
    return connected(door).chat.completions.create(model=door.model, **{"messages": MESSAGES, **GREEDY, **others})


@case
def completion(door: Door) -> str:
    answer = complete(door)
    assert 0 < answer.usage.completion_tokens <= MAX_TOKENS
    return str(answer.choices[0].text)


@case
def completion_stream(door: Door) -> str:
    text, usage = "", None
    for chunk in complete(door, **USAGE):
        text += "".join(choice.text for choice in chunk.choices)
        usage = chunk.usage or usage
    assert usage.completion_tokens > 0
    return text


@case
def wide_completion_stream(door: Door) -> str:
    return "".join(
        one.text for chunk in complete(door, stream=True, max_tokens=64, extra_body=WIDE) for one in chunk.choices
    )


@case
def list_of_prompts(door: Door) -> list[str]:
    answer = complete(door, prompt=[PROMPT, "import "])
    assert [choice.index for choice in answer.choices] == [0, 1]
    return [choice.text for choice in answer.choices]


@case
def several_choices(door: Door) -> list[str]:
    answer = complete(door, n=2, seed=1, temperature=1)
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts)) == 2
    return texts


@case
def logprobs(door: Door) -> list[float]:
    told = complete(door, logprobs=2).choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs)
    # Greedy: the token that is there is the likeliest.
    assert all(max(top.values()) <= one + 1e-6 for one, top in zip(told.token_logprobs, told.top_logprobs, strict=True))
    return list(told.token_logprobs)


@case
def echo(door: Door) -> str:
    choice = complete(door, echo=True, logprobs=0).choices[0]
    assert choice.text.startswith(PROMPT)
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert None not in choice.logprobs.token_logprobs[1:]
    return str(choice.text)


@case
def bad_request(door: Door) -> list[Any]:
    try:
        complete(door, temperature=-1)
    except openai.BadRequestError as error:
        return [error.type, error.param]
    raise AssertionError("a temperature below 0 was taken")


@case
def unknown_model(door: Door) -> list[Any]:
    try:
        complete(Door(door.url, "another"))
    except openai.NotFoundError as error:
        return [error.type, error.code]
    raise AssertionError("another model was served")


@case
def cancelled_stream(door: Door) -> int:
    """The next answer comes whole, so the door has let go of the one that was left."""
    stream = complete(door, stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    read = [next(stream) for _ in range(2)]
    stream.close()
    completion(door)
    return len(read)


@case
def models(door: Door) -> list[str]:
    return [one.id for one in connected(door).models.list()]


@case
def chat_whole(door: Door) -> str:
    return str(chat(door).choices[0].message.content)


@case
def chat_stream(door: Door) -> str:
    text, usage = "", None
    for chunk in chat(door, **USAGE):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert usage.completion_tokens > 0
    return text


@case
async def chat_stream_async(door: Door) -> str:
    async with openai.AsyncOpenAI(base_url=door.url, api_key=KEY, max_retries=0) as client:
        stream = await client.chat.completions.create(model=door.model, messages=MESSAGES, stream=True, **GREEDY)
        return "".join([one.delta.content or "" async for chunk in stream for one in chunk.choices])


@case
def wide_chat_stream(door: Door) -> str:
    chunks = chat(door, stream=True, max_tokens=48, extra_body=WIDE)
    return "".join(one.delta.content or "" for chunk in chunks for one in chunk.choices)


@case
def chat_logprobs(door: Door) -> int:
    told = chat(door, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in told)
    return len(told)


@case
def parsed(door: Door) -> Any:
    answer = connected(door).chat.completions.parse(
        model=door.model, messages=MESSAGES, response_format=City, temperature=0, max_tokens=OBJECT_TOKENS
    )
    return answer.choices[0].message.parsed.model_dump()


@case
def response(door: Door) -> str:
    answer = connected(door).responses.create(
        model=door.model, input=MESSAGES, temperature=0, max_output_tokens=MAX_TOKENS
    )
    assert answer.status in ("completed", "incomplete")
    return str(answer.output_text)


@case
def response_stream(door: Door) -> str:
    text, kinds = "", []
    settings: Any = {"temperature": 0, "max_output_tokens": MAX_TOKENS, "stream": True}
    for event in connected(door).responses.create(model=door.model, input=MESSAGES, **settings):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    return text


@case
def response_parsed(door: Door) -> Any:
    answer = connected(door).responses.parse(
        model=door.model, input=MESSAGES, text_format=City, temperature=0, max_output_tokens=OBJECT_TOKENS
    )
    return answer.output_parsed.model_dump()


@case
def tools(door: Door) -> Any:
    """What is required comes, and its arguments follow the schema; what is open is answered."""
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        (message,) = [one.message for one in chat(door, tools=[TOOL], tool_choice=choice, **ONE_CALL).choices]
        call = message.tool_calls[0]
        assert (call.type, call.function.name) == ("function", "weather")
        assert json.loads(call.function.arguments)["city"] in CITIES
    assert chat(door, tools=[TOOL], tool_choice="auto").choices[0].finish_reason
    return json.loads(call.function.arguments)


@case
def tools_stream(door: Door) -> Any:
    name, arguments = "", ""
    for chunk in chat(door, tools=[TOOL], tool_choice="required", stream=True, **ONE_CALL):
        for call in (one for choice in chunk.choices for one in choice.delta.tool_calls or ()):
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert name == "weather"
    return json.loads(arguments)


@case
def tool_result(door: Door) -> str:
    """A call and its result go back into the chat."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]
    return str(chat(door, messages=turns, tools=[TOOL], tool_choice="none").choices[0].message.content)


if __name__ == "__main__":
    main()
