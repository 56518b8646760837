"""``POST /v1/chat/completions``: what a chat may be made of. Text only; tools and media are refused by name."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator.api.chats import MAX_MESSAGES, turn
from orchestrator.api.http.requests import GenerateRequest
from orchestrator.api.http.strict import Name, StrictBody
from specgate.errors import InvalidArgument

Nothing = Annotated[list[None], Field(max_length=0)] | None
"""A list where an empty one says as little as none."""


class TextPart(StrictBody):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(StrictBody):
    """One turn. Parts of text are joined by newlines. Null fields are those of an answer that is sent back."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: Name | None = None

    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing = None
    annotations: Nothing = None

    @field_validator("content", mode="before", json_schema_input_type=str | list[TextPart])
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

    def for_template(self) -> dict[str, str]:
        """Return it as chat templates know it."""
        return turn(self.role, self.content, self.name)


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ChatRequest(GenerateRequest):
    """A conversation to go on with. ``add_generation_prompt`` and ``continue_final_message`` are vLLM's."""

    prompt_field = "messages"
    logprobs_field = "top_logprobs"

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    store: Literal[False] | None = None
    metadata: None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    parallel_tool_calls: bool | None = None
    tools: Nothing = None
    tool_choice: Literal["none", "auto"] | None = None
    functions: Nothing = None
    function_call: Literal["none", "auto"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None

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
    def length(self) -> tuple[str, int] | None:
        """See ``GenerateRequest``."""
        newer = self.max_completion_tokens
        return super().length if newer is None else ("max_completion_tokens", newer)

    @property
    def num_top_logprobs(self) -> int | None:
        """See ``GenerateRequest``."""
        return (self.top_logprobs or 0) if self.logprobs else None
