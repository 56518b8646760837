"""instructor: its modes that an OpenAI server can have, and a stream of partial objects."""

from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict

from tests.clients.programs.cases import KEY, MESSAGES, OBJECT_TOKENS, Door, case, main


class City(BaseModel):
    """What the model is to fill in, and nothing beside."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Paris", "Rome"]
    large: bool


class Anything(BaseModel):
    """Any object will do: a tiny model is bound to none by JSON mode alone."""

    name: str = ""


FENCED = {"structured_outputs": {"regex": '```json\\n\\{"name": "(Paris|Rome)", "large": (true|false)\\}\\n```'}}
"""What MD_JSON asks for in words, and a tiny model would not do by itself."""


def asked(door: Door, mode: instructor.Mode, model: type[BaseModel], **others: Any) -> Any:
    client = instructor.from_openai(openai.OpenAI(base_url=door.url, api_key=KEY, max_retries=0), mode=mode)
    return client.create(
        model=door.model,
        messages=MESSAGES,
        response_model=model,
        temperature=0,
        max_tokens=OBJECT_TOKENS,
        max_retries=0,
        **others,
    ).model_dump()


@case
def json_mode(door: Door) -> Any:
    return asked(door, instructor.Mode.JSON, Anything)


@case
def json_schema(door: Door) -> Any:
    return asked(door, instructor.Mode.JSON_SCHEMA, City)


@case
def md_json(door: Door) -> Any:
    return asked(door, instructor.Mode.MD_JSON, City, extra_body=FENCED)


@case
def tools(door: Door) -> Any:
    return asked(door, instructor.Mode.TOOLS, City)


@case
def partial_stream(door: Door) -> Any:
    client = instructor.from_openai(
        openai.OpenAI(base_url=door.url, api_key=KEY, max_retries=0), mode=instructor.Mode.JSON_SCHEMA
    )
    parts = client.create_partial(
        model=door.model, messages=MESSAGES, response_model=City, temperature=0, max_tokens=OBJECT_TOKENS, max_retries=0
    )
    city = list(parts)[-1]
    assert None not in (city.name, city.large)
    return city.model_dump()


if __name__ == "__main__":
    main()
