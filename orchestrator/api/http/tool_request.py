"""The tools of a chat: the functions, which of them to call, and the calls so far."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import from_json

from orchestrator.api.http.strict import Name, StrictBody
from specgate.errors import InvalidArgument

MAX_TOOLS = 128
MAX_CALLS = 128
"""In one message."""
ANYTHING_ELSE = "must be none, auto, required, or the name of one function as OpenAI writes it"
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Function(StrictBody):
    """A function that may be called. ``strict`` has no effect: required calls always follow the schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, json_schema_extra={"properties": {"type": {"const": "object"}}})
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _of_an_object(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value.get("type", "object") != "object":
            raise ValueError('must be a JSON schema of the type "object"')
        return value

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """The JSON schema that arguments follow. It is always an object's."""
        return NO_ARGUMENTS if self.parameters is None else {**self.parameters, "type": "object"}


class Tool(StrictBody):
    """A tool. Only functions are known here."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return it as chat templates take it."""
        own = self.function
        described = {} if own.description is None else {"description": own.description}
        parameters = NO_ARGUMENTS if own.parameters is None else own.parameters
        return {"type": "function", "function": {"name": own.name, **described, "parameters": parameters}}


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class NamedFunction(StrictBody):
    """A function by its name."""

    name: FunctionName


class NamedTool(StrictBody):
    """The one function that is to be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def read_tool_choice(value: Any) -> ToolChoice | None:
    """Return the choice. Raises ValueError: it is not one."""
    if value is None or value in ("none", "auto", "required"):
        return value  # type: ignore[no-any-return]
    try:
        return NamedTool.model_validate(value)
    except ValidationError:
        raise ValueError(ANYTHING_ELSE) from None


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Raise InvalidArgument if two tools have one name, or the choice needs a tool that is not there."""
    names = [tool.function.name for tool in tools]
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise InvalidArgument("tools", f"have two functions of the name {twice}")
    if not tools and choice not in (None, "none", "auto"):
        raise InvalidArgument("tool_choice", "needs tools")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise InvalidArgument("tool_choice", f"names {choice.function.name}, which is not among the tools")


class CalledFunction(StrictBody):
    """A called function. ``arguments`` is a JSON object as text; an empty text is an empty object."""

    name: FunctionName
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _an_object(cls, value: str) -> str:
        try:
            # Nesting that is too deep is a ValueError too.
            parsed = from_json(value or "{}", allow_inf_nan=False)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise ValueError("must be an object of JSON, as a text")
        return value


class ToolCall(StrictBody):
    """A call that an assistant made."""

    id: Name
    type: Literal["function"]
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return it as chat templates take it, with the arguments as an object."""
        arguments = json.loads(self.function.arguments or "{}")
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}
