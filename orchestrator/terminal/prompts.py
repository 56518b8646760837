"""Prompts from the command line or from a file of JSON lines, each with its own request."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from orchestrator.terminal.request_options import check_limits
from specgate.client import ChatMessage
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams, Verification


class PromptLine(BaseModel):
    """One line of a prompts file: ``prompt`` or ``token_ids``, and fields that override the flags."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    max_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] | str = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    gamma: int = 0
    gate: Gate = Gate.NONE
    gate_threshold: float | None = None
    draft_threshold: float | None = None
    verification: Verification = Verification.SHARED_NOISE
    logprobs: int | None = None
    cache_salt: str = ""

    def overrides(self) -> dict[str, object]:
        """Return the request fields that the line names, and no others."""
        named = {name: getattr(self, name) for name in self.model_fields_set - {"prompt", "token_ids"}}
        if isinstance(named.get("stop"), str):
            named["stop"] = (named["stop"],)
        return named


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it was given, text, token ids or a chat, and its request with the prompt still left out.

    ``fits``: the answer may be shorter than the request says, where there is less room.
    """

    request: GenerationRequest
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[ChatMessage, ...] = ()
    fits: bool = False


def read_prompts(path: Path, defaults: GenerationRequest) -> list[Prompt]:
    """Read JSON lines from a file, or from standard input for ``-``; empty lines are skipped.

    Raises:
        InvalidArgument: unreadable, or a line is not what it should be; names the line and the key.
    """
    prompts = [
        _parse(f"{path} line {number}", line, defaults)
        for number, line in enumerate(_lines(path), start=1)
        if line.strip()
    ]
    if not prompts:
        raise InvalidArgument("prompts", f"{path} holds no prompt; one JSON object a line is expected")
    return prompts


def with_token_ids(prompt: Prompt, tokenizer: TextTokenizer | None) -> GenerationRequest:
    """Return the request with the prompt's token ids.

    Raises:
        InvalidArgument: the prompt is empty, or it is text and the target has no tokenizer, or no chat template for a
            chat.
    """
    token_ids = prompt.token_ids
    if token_ids is None:
        if tokenizer is None:
            raise InvalidArgument("prompt", "the target has no tokenizer; give token_ids in a prompts file")
        turns = [{"role": message.role, "content": _readable(message.content)} for message in prompt.messages]
        token_ids = tokenizer.encode_chat(turns) if turns else tokenizer.encode(_readable(prompt.text or ""))
    if not token_ids:
        raise InvalidArgument("prompt", "is empty; at least 1 token is needed")
    return replace(prompt.request, prompt_token_ids=token_ids)


def _readable(text: str) -> str:
    """Return ``text``. Raises InvalidArgument where bytes of the command line were no text in its encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("prompt", f"character {error.start} is not valid UTF-8") from None
    return text


def _lines(path: Path) -> Iterable[str]:
    try:
        # str.splitlines also splits at U+2028, which JSON allows inside a string.
        return (sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument("prompts", f"{path} cannot be read: {error}") from error


def _parse(place: str, line: str, defaults: GenerationRequest) -> Prompt:
    try:
        parsed = PromptLine.model_validate_json(line)
    except ValidationError as error:
        raise _first_problem(place, error) from None
    if (parsed.prompt is None) == (parsed.token_ids is None):
        raise InvalidArgument(place, "give either 'prompt' or 'token_ids'")
    try:
        request = _overridden(defaults, parsed.overrides())
        check_limits(request)
    except InvalidArgument as error:
        raise InvalidArgument(f"{place}: {error.field}", error.problem) from None
    return Prompt(request, parsed.prompt, parsed.token_ids)


def _first_problem(place: str, error: ValidationError) -> InvalidArgument:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return InvalidArgument(place, f"unknown key {key!r}; known are {', '.join(PromptLine.model_fields)}")
    return InvalidArgument(f"{place}: {key}" if key else place, first["msg"])


def _overridden(defaults: GenerationRequest, overrides: Mapping[str, object]) -> GenerationRequest:
    in_sampling = {field.name for field in fields(SamplingParams)}
    sampling = {name: value for name, value in overrides.items() if name in in_sampling}
    others = {name: value for name, value in overrides.items() if name not in in_sampling}
    return replace(defaults, sampling=replace(defaults.sampling, **sampling), **others)  # type: ignore[arg-type]
