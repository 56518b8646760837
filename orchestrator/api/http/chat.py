"""``POST /v1/chat/completions``: what a chat may consist of. Text and tools; media are refused by name."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator.api.chats import MAX_MESSAGES, turn
from orchestrator.api.http.requests import GenerateRequest
from orchestrator.api.http.strict import Name, OnlyFalse, StrictBody
from orchestrator.api.http.tool_request import (
    MAX_CALLS,
    Tool,
    ToolCall,
    ToolChoice,
    Tools,
    check_tools,
    read_tool_choice,
)
from specgate.errors import InvalidArgument

Nothing = Annotated[list[None], Field(max_length=0)] | None
"""A list that must be empty, which means the same as none."""


class TextPart(StrictBody):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(StrictBody):
    """One turn. Parts of text are joined by newlines. Null fields are those of an answer that is sent back.

    An assistant's content may be null, as in an answer of calls or an empty answer. Beside ``tool_calls`` it may be
    left out. A tool's content is the result of a call.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: Name | None = None

    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Nothing = None

    @model_validator(mode="before")
    @classmethod
    def _assistants_may_say_nothing(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("content") is not None:
            return value
        says_nothing = value.get("tool_calls") or (value.get("role") == "assistant" and "content" in value)
        return value | {"content": ""} if says_nothing else value

    @field_validator("content", mode="before", json_schema_input_type=str | list[TextPart] | None)
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        for part in value:
            if not isinstance(part, dict) or part.keys() != {"type", "text"} or part["type"] != "text":
                raise ValueError('every part must be {"type": "text", "text": ...}')
            if not isinstance(part["text"], str):
                raise ValueError("a part's text must be a string")
        return "\n".join(part["text"] for part in value)

    @model_validator(mode="after")
    def _check_role(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to the role assistant")
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise ValueError("tool_call_id belongs to the role tool, which needs it")
        return self

    def for_template(self) -> dict[str, Any]:
        """Return it as chat templates take it."""
        calls = [call.for_template() for call in self.tool_calls or ()]
        others = {"tool_calls": calls, "tool_call_id": self.tool_call_id}
        return turn(self.role, self.content, self.name) | {name: value for name, value in others.items() if value}


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatRequest(GenerateRequest):
    """A conversation to continue. ``add_generation_prompt`` and ``continue_final_message`` are vLLM's."""

    prompt_field = "messages"
    logprobs_field = "top_logprobs"

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    store: OnlyFalse | None = None
    metadata: None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    functions: Nothing = None
    function_call: Literal["none", "auto"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None

    @field_validator("tool_choice", mode="plain", json_schema_input_type=ToolChoice | None)
    @classmethod
    def _read_tool_choice(cls, value: Any) -> ToolChoice | None:
        return read_tool_choice(value)

    @model_validator(mode="after")
    def _check_tools(self) -> "ChatRequest":
        check_tools(self.tools or (), self.tool_choice)
        if self.offered_tools and self.grammar is not None:
            form = "response_format" if self.structured_outputs is None else "structured_outputs"
            raise InvalidArgument(form, 'excludes tools, unless tool_choice is "none"')
        return self

    @model_validator(mode="after")
    def _check_pairs(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidArgument("top_logprobs", "needs logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise InvalidArgument("max_tokens", "is an older name of max_completion_tokens; give one of them")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidArgument("continue_final_message", "excludes add_generation_prompt")
        return self

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model sees, and may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def names(self) -> dict[str, str]:
        return super().names | ({"grammar": "tools", "grammar.lark": "tools"} if self.offered_tools else {})

    @property
    def length(self) -> tuple[str, int] | None:
        newer = self.max_completion_tokens
        return super().length if newer is None else ("max_completion_tokens", newer)

    @property
    def num_top_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
