"""The fields of requests: OpenAI's, vLLM's and ours. Unknown fields are refused by name.

Fields of OpenAI that nothing here implements are accepted with the one value that changes nothing.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator.api.choices import MAX_CHOICES
from orchestrator.api.http.strict import Name, OnlyFalse, OnlyOne, StrictBody
from orchestrator.api.http.structured import (
    FormatNames,
    ResponseFormat,
    ResponseTextFormat,
    StructuredOutputs,
    grammar_names,
    grammar_of,
)
from orchestrator.decode.request import MAX_STOP_STRINGS
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate.types import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, Grammar, Verification

MAX_PROMPT_TOKENS = 1 << 20

Prompt = str | list[int]
Stop = Annotated[list[str], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]


class StreamOptions(StrictBody):
    """``include_usage`` adds a last chunk with usage and metrics, ``continuous_usage_stats`` usage to every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: OnlyFalse | None = None


class GenerateRequest(StrictBody):
    """The fields of all endpoints. None: the client leaves it out. ``SamplingParams`` and others check ranges.

    ``top_k`` to ``prompt_logprobs`` have vLLM's names. ``gamma`` to ``return_rounds`` are ours. ``return_sources`` adds
    ``sources`` to each chunk, the source of every token: ``accepted`` (draft), ``recovered``, ``bonus`` or ``solo``.
    ``return_rounds`` adds ``rounds``, an entry for every verdict.
    """

    prompt_field: ClassVar[str]
    logprobs_field: ClassVar[str] = "logprobs"
    format_names: ClassVar[FormatNames] = FormatNames("response_format", "response_format.json_schema.schema")

    model: Name
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    stop: Stop | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    prompt_logprobs: int | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    gamma: int | None = None
    gate: Gate | None = None
    gate_threshold: float | None = None
    draft_threshold: float | None = None
    verification: Verification | None = None
    return_sources: bool | None = None
    return_rounds: bool | None = None

    n: int | None = None
    user: Name | None = None

    @field_validator("stop", mode="before", json_schema_input_type=str | Stop | None)
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("top_k", mode="after")
    @classmethod
    def _minus_one_is_off(cls, value: int | None) -> int | None:
        return 0 if value == -1 else value

    @model_validator(mode="after")
    def _check_stream_options(self) -> "GenerateRequest":
        if self.stream_options is not None and not self.stream:
            raise InvalidArgument("stream_options", "needs stream: true")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidArgument("prompt_logprobs", "are not part of streams; echo and logprobs are")
        return self

    @property
    def num_copies(self) -> int:
        """Choices for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with usage and metrics."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def skips_special_tokens(self) -> bool:
        """Whether the text leaves out special tokens."""
        return self.skip_special_tokens is not False

    @property
    def echoes(self) -> bool:
        """Whether the text begins with the prompt."""
        return False

    @property
    def emits_nothing(self) -> bool:
        """Whether the client wants the prompt only."""
        asks_of_prompt = self.echoes or self.prompt_logprobs is not None
        return asks_of_prompt and self.length is not None and self.length[1] == 0

    @property
    def num_prompt_logprobs(self) -> int | None:
        """How many of the likeliest tokens are needed at each prompt token, None for no log-probabilities."""
        wanted = (self.prompt_logprobs, self.num_top_logprobs if self.echoes else None)
        return max((num for num in wanted if num is not None), default=None)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def length(self) -> tuple[str, int] | None:
        """The field that limits the answer's length, and its value; None if the client leaves it out."""
        return None if self.max_tokens is None else ("max_tokens", self.max_tokens)

    @property
    def names(self) -> dict[str, str]:
        """The client's name of a field by ours, for names that differ."""
        return {
            "prompt": self.prompt_field,
            "prompt_token_ids": self.prompt_field,
            "max_tokens": self.length[0] if self.length else "max_tokens",
            "logprobs": self.logprobs_field,
            "prompt_logprobs": self.logprobs_field if self.prompt_logprobs is None else "prompt_logprobs",
            **grammar_names(self.structured_outputs, self.format_names),
        }

    @property
    def grammar(self) -> Grammar | None:
        """What the answer may be, None for any text. Raises InvalidArgument if two fields define it."""
        return grammar_of(self.format, self.structured_outputs, self.format_names)

    @property
    def format(self) -> ResponseFormat | ResponseTextFormat | None:
        """OpenAI's field for what the answer may be."""
        return self.response_format

    @property
    def num_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are reported beside each token, None for no log-probabilities."""
        return None


class CompletionRequest(GenerateRequest):
    """``POST /v1/completions``. The prompt is a text or a list of token ids, or a list of either: a choice for each."""

    prompt_field = "prompt"

    prompt: list[Prompt]
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    best_of: OnlyOne | None = None
    echo: bool | None = None
    suffix: Literal[""] | None = None

    @field_validator("prompt", mode="plain", json_schema_input_type=Prompt | list[str] | list[list[int]])
    @classmethod
    def _prompts(cls, value: Any) -> list[Prompt]:
        several = isinstance(value, list) and value and isinstance(value[0], str | list)
        if several and len(value) > MAX_CHOICES:
            raise ValueError(f"{len(value)} prompts; {MAX_CHOICES} choices are the most")
        prompts: list[Any] = value if several else [value]
        return [_checked(prompt, type(prompts[0])) for prompt in prompts]

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)


def _checked(prompt: Any, kind: type) -> Prompt:
    """Return a prompt. Raises ValueError: it is not one, or not of the same kind as the others."""
    if isinstance(prompt, str) and kind is str:
        return prompt
    if kind is str or not isinstance(prompt, list) or any(type(one) is not int for one in prompt[:MAX_PROMPT_TOKENS]):
        raise ValueError("must be a text or a list of token ids, or a list of texts or of such lists")
    if len(prompt) > MAX_PROMPT_TOKENS:
        raise ValueError(f"{len(prompt)} token ids; {MAX_PROMPT_TOKENS} is the most")
    return prompt
