"""What clients may ask for, in OpenAI's words and vLLM's, and in our own. Unknown fields are refused by name.

Fields of OpenAI's that nothing here implements are accepted with the one value that changes nothing.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from orchestrator.api.http.structured import ResponseFormat, StructuredOutputs, grammar_names, grammar_of
from orchestrator.decode.request import MAX_STOP_STRINGS
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate.types import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, Grammar, Verification

MAX_PROMPT_TOKENS = 1 << 20
MAX_NAME_CHARACTERS = 512

Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]


class StrictBody(BaseModel):
    """No unknown field, no number in quotes, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class StreamOptions(StrictBody):
    """``include_usage`` adds a last chunk that carries usage and metrics."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class GenerateRequest(StrictBody):
    """What both endpoints take. None is "not said" everywhere; ranges are checked by ``SamplingParams`` and others.

    ``top_k`` to ``return_token_ids`` are called as vLLM calls them. ``gamma`` to ``verification`` are ours, and so is
    ``return_sources``: beside the text, each chunk's ``sources`` says of every token who brought it: ``accepted``
    (draft), ``recovered``, ``bonus`` or ``solo``.
    """

    prompt_field: ClassVar[str]
    logprobs_field: ClassVar[str] = "logprobs"

    model: Name
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], Field(max_length=MAX_LOGIT_BIAS)] | None = None
    stop: Annotated[list[str], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    gamma: int | None = None
    gate: Gate | None = None
    gate_threshold: float | None = None
    verification: Verification | None = None
    return_sources: bool | None = None

    n: Literal[1] | None = None
    user: Name | None = None
    min_tokens: Literal[0] | None = None
    skip_special_tokens: Literal[True] | None = None
    include_stop_str_in_output: Literal[False] | None = None

    @field_validator("stop", mode="before")
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
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with usage and metrics."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def length(self) -> tuple[str, int] | None:
        """The field that limits the answer's length and its value, None where the client leaves it open."""
        return None if self.max_tokens is None else ("max_tokens", self.max_tokens)

    @property
    def names(self) -> dict[str, str]:
        """The client's field by ours, where they differ."""
        return {
            "prompt": self.prompt_field,
            "prompt_token_ids": self.prompt_field,
            "max_tokens": self.length[0] if self.length else "max_tokens",
            "logprobs": self.logprobs_field,
            **grammar_names(self.structured_outputs),
        }

    @property
    def grammar(self) -> Grammar | None:
        """What the answer may be, None for any text. Raises InvalidArgument where two fields say it."""
        return grammar_of(self.response_format, self.structured_outputs)

    @property
    def num_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are told beside each token's own log-probability, None without any."""
        return None


class CompletionRequest(GenerateRequest):
    """``POST /v1/completions``. The prompt is one text or one list of token ids, alone or in a list of one."""

    prompt_field = "prompt"

    prompt: str | Annotated[list[int], Field(fail_fast=True)]
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None

    @field_validator("prompt", mode="plain")
    @classmethod
    def _one_prompt(cls, value: Any) -> str | list[int]:
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            if len(value) > 1:
                raise ValueError(f"{len(value)} prompts; send one at a time")
            value = value[0]
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not all(type(token_id) is int for token_id in value[:MAX_PROMPT_TOKENS]):
            raise ValueError("must be a text or a list of token ids")
        if len(value) > MAX_PROMPT_TOKENS:
            raise ValueError(f"{len(value)} token ids; {MAX_PROMPT_TOKENS} is the most")
        return value

    @property
    def num_top_logprobs(self) -> int | None:
        """See ``GenerateRequest``."""
        return self.logprobs
