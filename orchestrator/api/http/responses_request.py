"""``POST /v1/responses``: text, free or with a format. Nothing is stored."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator.api.chats import MAX_MESSAGES
from orchestrator.api.http.chat import Message, Nothing
from orchestrator.api.http.requests import GenerateRequest
from orchestrator.api.http.strict import Name, OnlyFalse, OnlyZero, StrictBody
from orchestrator.api.http.structured import FormatNames, ResponseTextFormat
from specgate.errors import InvalidArgument

NOT_HERE = (
    "max_tokens",
    "n",
    "response_format",
    "stream_options",
    "prompt_logprobs",
    "return_token_ids",
    "return_sources",
    "return_rounds",
)
"""Fields of the other endpoints that have no place in this answer."""


class ResponseTextPart(StrictBody):
    """A part of a message: of an input, or of an answer that is sent back."""

    type: Literal["input_text", "output_text"]
    text: str

    annotations: Nothing = None
    logprobs: Nothing = None


class InputMessage(StrictBody):
    """One turn. Parts of text are joined by newlines. The other fields of an answer may be sent back with it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    type: Literal["message"] | None = None

    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: None = None

    @field_validator("content", mode="before", json_schema_input_type=str | list[ResponseTextPart])
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return "\n".join(ResponseTextPart.model_validate(part).text for part in value)

    def as_message(self) -> Message:
        """Return it as a message of a chat."""
        return Message(role=self.role, content=self.content)


InputMessages = Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class TextSettings(StrictBody):
    """The form of the answer's text."""

    format: ResponseTextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(GenerateRequest):
    """A text or a conversation to continue. It takes the extras of chats that have a place in this answer."""

    prompt_field: ClassVar[str] = "input"
    format_names: ClassVar[FormatNames] = FormatNames("text.format", "text.format.schema")

    input: InputMessages
    instructions: str | None = None
    max_output_tokens: int | None = None

    store: OnlyFalse | None = None
    previous_response_id: None = None
    conversation: None = None
    background: OnlyFalse | None = None
    prompt: None = None
    include: Nothing = None
    tools: Nothing = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: None = None
    text: TextSettings | None = None
    reasoning: None = None
    top_logprobs: OnlyZero | None = None
    truncation: Literal["disabled"] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=0)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None

    add_generation_prompt: ClassVar[None] = None
    continue_final_message: ClassVar[None] = None

    @field_validator("input", mode="before", json_schema_input_type=str | InputMessages)
    @classmethod
    def _text_or_messages(cls, value: Any) -> Any:
        return [{"role": "user", "content": value}] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_fields(self) -> "ResponsesRequest":
        for name in NOT_HERE:
            if getattr(self, name) is not None:
                raise InvalidArgument(name, "is not a parameter of this endpoint")
        return self

    @property
    def messages(self) -> list[Message]:
        """The conversation, its instructions first."""
        first = [Message(role="system", content=self.instructions)] if self.instructions is not None else []
        return [*first, *(one.as_message() for one in self.input)]

    @property
    def length(self) -> tuple[str, int] | None:
        return None if self.max_output_tokens is None else ("max_output_tokens", self.max_output_tokens)

    @property
    def format(self) -> ResponseTextFormat | None:
        return self.text.format if self.text is not None else None

    @property
    def names(self) -> dict[str, str]:
        return super().names | {"messages": self.prompt_field}
